//! What differs between two states of a tree.
