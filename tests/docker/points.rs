//! Where the tests of containers kill respool.

/// In a rewind with a container.
pub const POINTS: &[&str] = &[
    "rewind-planned",
    "container-stopped",
    "rewind-frozen",
    "rewind-safety",
    "rewind-applying",
    "rewind-checked",
    "rewind-containers",
    "swap-made",
    "swap-exchanged",
    "restore-step-4",
    "container-restored",
    "container-checked",
    "container-started",
    "rewind-resumed",
    "rewind-marked",
];

/// Of one that was started with `--rm`.
pub const LIVING: &[&str] = &[
    "container-paused",
    "rewind-applying",
    "rewind-containers",
    "remount-copied",
    "remount-exchanged",
    "remount-unmounted",
    "container-checked",
    "living-kept",
    "container-restarted",
    "rewind-resumed",
];

/// In the making of a container that its engine lost.
pub const LOST: &str = "living-made";
