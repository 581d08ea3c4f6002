//! Making a live tree equal to a snapshot, in place.
