//! What a software barrier tells a cycle of stores that are made exactly while it marks.

use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use larder_fixed::barrier::Algorithm;
use larder_fixed::concurrent::Way;
use larder_fixed::inject::{Point, at_points};
use larder_fixed::options::Options;
use larder_fixed::{allocate_many, concurrent, init, kind, object};
use larder_testkit::mutator::object_of;
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
