//! The user's and the project's configuration.
