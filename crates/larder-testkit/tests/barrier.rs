//! What a software barrier tells a cycle of stores that are made exactly while it marks.

use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use larder_fixed::barrier::{self, Algorithm};
use larder_fixed::concurrent::Way;
use larder_fixed::finalization::{self, Registered};
use larder_fixed::inject::{Point, at_points};
use larder_fixed::options::Options;
use larder_fixed::{allocate, allocate_many, concurrent, init, kind, lock, object};
use larder_testkit::mutator::{check, object_of};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{WITHOUT_SEQUENCES, crowd, in_child};

const ROUNDS: u64 = 10;

/// Whether the marker thread waits where it has traced what there was. Sync: the test and the marker thread in turn.
static STEP: AtomicU32 = AtomicU32::new(GOES_ON);
const GOES_ON: u32 = 0;
const IS_TO_WAIT: u32 = 1;
const WAITS: u32 = 2;

fn hook(p: Point) {
    if p == Point::Cleaned && STEP.compare_exchange(IS_TO_WAIT, WAITS, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        crowd::wait_until(|| STEP.load(Ordering::Acquire) == GOES_ON);
    }
}

fn prepare(algorithm: Algorithm) {
    init(&Options::default());
    let way = Way::Barrier(algorithm);
    assert_eq!(concurrent::turn_on(Some(way)), Ok(way));
    verifier::watch(Rules::WITH_FINALIZERS);
    at_points(Some(hook));
}

/// Runs `f` in a cycle that has traced what there was, and in which objects are born marked by now; then ends the cycle.
fn in_cycle(f: impl FnOnce()) {
    let done = concurrent::completed()[0];
    STEP.store(IS_TO_WAIT, Ordering::Release);
    concurrent::ask();
    crowd::wait_until(|| STEP.load(Ordering::Acquire) == WAITS);
    f();
    assert_eq!(concurrent::completed()[0], done);
    STEP.store(GOES_ON, Ordering::Release);
    crowd::wait_until(|| !concurrent::finish_if_ready() && concurrent::completed()[0] > done);
}

/// Where the first cells of a list are from a buffer that was there before the cycle, and its head was born marked, nobody comes from the head to them but
/// by what the barrier tells.
#[test]
fn lists_of_cells_are_whole_whose_head_was_born_marked() {
    /// In cells of 64 bytes, of which a list has as many as a page.
    const SIZE: usize = 60;
    const CELLS: usize = 4096 / 64;
    /// More than a buffer has.
    const LISTS: usize = 10;
    in_child("lists_of_cells_are_whole_whose_head_was_born_marked", &[WITHOUT_SEQUENCES], || {
        prepare(Algorithm::IncrementalUpdate);
        let heads = Words::roots(LISTS);
        for round in 0..ROUNDS {
            // So that no buffer ends between two lists.
            for _ in 0..10 + round {
                core::hint::black_box(object_of(round, SIZE));
            }
            in_cycle(|| {
                for i in 0..LISTS {
                    // SAFETY: a root at once.
                    heads.set(i, unsafe { allocate_many(kind::NORMAL, SIZE) }.expose_provenance());
                }
            });
            for i in 0..LISTS {
                let (mut at, mut cells) = (heads.get(i), 0);
                while at != 0 {
                    assert_eq!(object::base(at), Some(at), "cell {cells} of list {i} in round {round}");
                    // SAFETY: the first word of an object.
                    at = unsafe { ptr::with_exposed_provenance::<usize>(at).read() };
                    cells += 1;
                }
                assert_eq!(cells, CELLS);
            }
        }
    });
}

/// What nothing but a link referred to when the snapshot was taken does not belong to it. If the program takes it out of the link, it is kept all the same by
/// an object that was marked before.
#[test]
fn what_comes_out_of_a_link_is_kept_by_a_snapshot() {
    const SIZE: usize = 200;
    in_child("what_comes_out_of_a_link_is_kept_by_a_snapshot", &[], || {
        prepare(Algorithm::Snapshot);
        let roots = Words::roots(1);
        // SAFETY: a root at once.
        roots.set(0, unsafe { allocate(kind::NORMAL, ROUNDS as usize * 8) }.expose_provenance());
        let word = move |i: u64| ptr::with_exposed_provenance_mut::<usize>(roots.get(0)).wrapping_add(i as usize);
        let links = Words::hidden(ROUNDS as usize);
        for id in 0..ROUNDS {
            let link = id as usize;
            // On stacks that are gone when the cycle ends.
            let make = move || {
                links.set(link, object_of(id, SIZE).expose_provenance());
                assert_eq!(finalization::register_link(links.address(link), links.get(link)), Ok(Registered::New));
            };
            // SAFETY: a word of the object that the root keeps.
            let store = move |revealed| unsafe { barrier::store(word(id), revealed) };
            let take = move || match id % 2 {
                0 => store(lock::with(|| links.get(link))),
                _ => lock::with(|| store(links.get(link))),
            };
            crowd::spawn(make).join();
            in_cycle(|| _ = crowd::spawn(take).join());
            for id in 0..=id {
                // SAFETY: as above.
                check(ptr::with_exposed_provenance(unsafe { word(id).read() }), SIZE, id);
                assert_ne!(links.get(id as usize), 0, "link {id} was cleared");
            }
        }
    });
}
