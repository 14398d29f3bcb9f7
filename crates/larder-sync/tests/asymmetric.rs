//! The asymmetric fence on the real kernel: of two threads that each write and then read, one sees the other.
#![cfg(not(loom))]

mod dekker;

use dekker::missed_by_both;
use larder_sync::asymmetric;

#[test]
fn both_sides_never_miss_the_other() {
    asymmetric::init();
    assert_eq!(missed_by_both(asymmetric::light, asymmetric::heavy), 0);
}

/// Shows that the test above can fail: two light halves promise nothing. Not run by default, because a loaded machine
/// may keep the threads from colliding.
#[test]
#[ignore = "depends on two processors being free"]
fn two_light_halves_miss_one_another() {
    asymmetric::init();
    assert_ne!(missed_by_both(asymmetric::light, asymmetric::light), 0);
}

/// A child inherits the registration, so a heavy half that relies on it works there, with and without another `init`.
#[test]
fn a_fork_child_passes_the_heavy_half() {
    asymmetric::init();
    // SAFETY: the child makes system calls only, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            asymmetric::heavy();
            asymmetric::init();
            asymmetric::heavy();
            libc::_exit(7);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7,
            "the child's heavy half failed: {status:#x}"
        );
    }
}
