//! A process in a control group of its own with little memory: collections come early enough that the kernel does not end it.

use std::path::Path;
use std::{env, fs};

use larder_fixed::options::Options;
use larder_fixed::{allocate, init, kind};
use larder_testkit::table::Words;
use larder_testkit::{Random, beside, crowd, in_child};

#[path = "../../../xtask/src/group.rs"]
mod group;
use group::Group;

/// In the child: the group's folder.
const GROUP: &str = "LARDER_TEST_GROUP";
const LIMIT: u64 = 64 << 20;

/// Runs `body` in a process that has a group of its own, if there may be one.
fn in_group(name: &str, body: impl FnOnce()) {
    let child = |folder: &Path| {
        in_child(name, &[(GROUP, folder.to_str().expect("made of text"))], || {
            fs::write(folder.join("cgroup.procs"), "0").expect("the parent may create groups");
            body();
        });
    };
    match env::var_os(GROUP) {
        Some(folder) => child(Path::new(&folder)),
        None => match Group::create(&format!("test-{name}"), LIMIT) {
            Ok(group) => child(group.folder()),
            Err(error) => println!("SKIPPED: no control group can be made ({error})"),
        },
    }
}

/// Threads that keep so many bytes in all, in objects of up to `most`, and replace them at random so many times each.
fn replace_at_random(threads: usize, live: usize, most: usize, times: usize) {
    // What dies while a cycle marks beside the program takes memory, too.
    let live = if beside::is_asked() { live / 2 } else { live };
    init(&Options::default());
    crowd::all(threads, move |t| {
        let table = Words::roots((live / threads / (most / 2)).max(1));
        let mut random = Random::new(t as u64 + 1);
        for _ in 0..times {
            let size = 16 + random.below(most);
            // SAFETY: in a root at once.
            let at = unsafe { allocate(kind::POINTER_FREE, size) };
            assert!(!at.is_null());
            // SAFETY: a fresh object.
            unsafe { at.write_bytes(1, size) };
            table.set(random.below(table.count()), at.expose_provenance());
        }
    });
}

/// Four threads on two CPUs: the collector lost its CPU to the threads that it had resumed before it bounded their budget, and they took more than there was.
#[test]
fn threads_stay_within_their_group_while_the_collector_has_no_cpu() {
    in_group("threads_stay_within_their_group_while_the_collector_has_no_cpu", || {
        replace_at_random(4, 26 << 20, 100_000, 4000);
    });
}

/// A thread that waited for many cycles of others took what it had read of its group before for the present.
#[test]
fn a_crowd_stays_within_its_group() {
    in_group("a_crowd_stays_within_its_group", || replace_at_random(64, 26 << 20, 100_000, 500));
}

/// What the heap holds for nothing lies in blocks of many classes: it is not all good for what comes next.
#[test]
fn objects_of_many_sizes_stay_within_their_group() {
    in_group("objects_of_many_sizes_stay_within_their_group", || replace_at_random(200, 28 << 20, 40_000, 500));
}
