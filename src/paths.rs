//! Where things are: the invoking user's home, config and state folders.
