//! Facts about processes from /proc.
