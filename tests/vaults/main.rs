//! The behaviour of every vault, from one source: in memory, on Btrfs (as root and as an ordinary user), and of copies. What only a real tree
//! has (hard links, attributes, time stamps) is asked of the latter two.

#[path = "../common/mod.rs"]
mod common;

mod behaviour;
mod ground;
mod trees;
mod user;

/// One test a vault and behaviour.
macro_rules! each {
    ($vault:ident: $ground:ty; $from:ident: $($name:ident)*) => {
        mod $vault {
            $(#[test] fn $name() { crate::$from::$name(&<$ground>::new()); })*
        }
    };
}

macro_rules! behaviours {
    ($vault:ident: $ground:ty) => {
        each!($vault: $ground; behaviour:
            checkpoints_are_listed_in_order_with_all_that_was_said
            labels_pins_and_lateness_are_kept
            every_kind_of_change_has_its_row
            a_renamed_folder_is_one_row
            contents_and_entries_of_each_state
            what_is_not_there_is_not_found
            restore_brings_all_back_and_undo_too
            restore_of_a_selection_leaves_the_rest
            pinned_ones_are_not_removed_and_the_rest_stays_whole
            verify_names_what_differs
            cancelling_changes_nothing);
    };
}

macro_rules! on_disk {
    ($vault:ident: $ground:ty) => {
        each!($vault: $ground; trees:
            every_attribute_comes_back
            hard_links_are_groups_again
            inodes_that_both_states_have_stay
            p093_same_size_and_time_other_content_is_found
            p015_what_did_not_change_is_not_touched
            holes_stay_holes
            immutable_files_come_back
            links_are_never_followed
            names_of_any_bytes
            restore_twice_is_restore_once
            writes_through_a_mapping_are_seen);
    };
}

/// One test a behaviour, in a process of an ordinary user.
macro_rules! as_a_user {
    ($vault:ident: $from:ident: $($name:ident)*) => {
        mod $vault {
            $(mod $name {
                #[test]
                fn as_a_user() {
                    crate::user::run(concat!(stringify!($vault), "::", stringify!($name), "::child"));
                }
                #[test]
                #[ignore = "run by the test beside it, as another user"]
                fn child() {
                    crate::$from::$name(&crate::user::UserBtrfs::new());
                }
            })*
        }
    };
}

behaviours!(memory: crate::ground::Memory);
behaviours!(btrfs: crate::ground::Btrfs);
behaviours!(copy: crate::ground::Copies);
on_disk!(btrfs_trees: crate::ground::Btrfs);
on_disk!(copy_trees: crate::ground::Copies);
as_a_user!(btrfs_user: behaviour:
    checkpoints_are_listed_in_order_with_all_that_was_said
    labels_pins_and_lateness_are_kept
    every_kind_of_change_has_its_row
    a_renamed_folder_is_one_row
    contents_and_entries_of_each_state
    what_is_not_there_is_not_found
    restore_brings_all_back_and_undo_too
    restore_of_a_selection_leaves_the_rest
    pinned_ones_are_not_removed_and_the_rest_stays_whole
    verify_names_what_differs
    cancelling_changes_nothing);
// owners, devices and the immutable flag are root's
as_a_user!(btrfs_user_trees: trees:
    hard_links_are_groups_again
    inodes_that_both_states_have_stay
    p093_same_size_and_time_other_content_is_found
    p015_what_did_not_change_is_not_touched
    holes_stay_holes
    links_are_never_followed
    names_of_any_bytes
    restore_twice_is_restore_once
    writes_through_a_mapping_are_seen);
mod copies;
mod left_out;
