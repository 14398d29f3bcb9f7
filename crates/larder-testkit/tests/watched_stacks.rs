//! Stacks whose writes a cycle watches, while their threads come and go.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use larder_fixed::concurrent::Way;
use larder_fixed::inject::{Point, at_points};
use larder_fixed::options::Options;
use larder_fixed::{concurrent, cycle, init};
use larder_sys::watch::Kind;
use larder_testkit::beside::offered;
use larder_testkit::mutator::{check, object_of};
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{crowd, in_child};
use larder_threads::blocking;

const ROUNDS: u64 = 5;
const SIZE: usize = 200;
/// Bytes of a stack, and words of the frame in which its thread sleeps: long enough to be watched.
const STACK: usize = 512 << 10;
const FRAME: usize = 12 << 10;

/// Whether the marker thread waits where it has looked at all stacks and asks for written pages. Sync: the test and the marker thread in turn.
static STEP: AtomicU32 = AtomicU32::new(GOES_ON);
const GOES_ON: u32 = 0;
const IS_TO_WAIT: u32 = 1;
const WAITS: u32 = 2;

/// The last cycle before the object was made. Sync: the test writes before it asks for a cycle.
static CYCLE: AtomicU64 = AtomicU64::new(0);
/// The object that is hidden: its address complemented, so that nothing refers to it. Sync: as `CYCLE`.
static HIDDEN: AtomicUsize = AtomicUsize::new(0);
/// Sleepers that sleep. Sync: they count themselves.
static ASLEEP: AtomicUsize = AtomicUsize::new(0);
/// They may end. Sync: by the test.
static ENDS: AtomicBool = AtomicBool::new(false);

fn hook(p: Point) {
    if p == Point::Cleaned
        && !is_over()
        && STEP.compare_exchange(IS_TO_WAIT, WAITS, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    {
        crowd::wait_until(|| STEP.load(Ordering::Acquire) == GOES_ON);
    }
}

/// Whether a cycle has ended since the object was made, which may have found it dead.
fn is_over() -> bool {
    cycle::number() != CYCLE.load(Ordering::Relaxed)
}

/// Sleeps below a long frame. With `takes`, a word of that frame becomes the only reference to the hidden object.
fn sleeper(takes: bool) {
    #[inline(never)]
    fn take(word: *mut usize) {
        // SAFETY: a word of the caller's frame.
        unsafe { word.write_volatile(!HIDDEN.load(Ordering::Relaxed)) };
    }
    #[inline(never)]
    fn sleep(frame: &mut [usize; FRAME]) {
        blocking::region(|| {
            ASLEEP.fetch_add(1, Ordering::Release);
            crowd::wait_until(|| ENDS.load(Ordering::Acquire));
            ASLEEP.fetch_sub(1, Ordering::Release);
        });
        core::hint::black_box(frame);
    }
    let mut frame = [0; FRAME];
    if takes {
        take(&raw mut frame[FRAME / 2]);
    }
    sleep(core::hint::black_box(&mut frame));
    core::hint::black_box(&frame);
}

/// Memory that begins clear, in the place of what was there, or anywhere.
fn map(at: *mut u8) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if at.is_null() { 0 } else { libc::MAP_FIXED };
    // SAFETY: whoever had it before has ended.
    let mapped = unsafe { libc::mmap(at.cast(), STACK, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped.cast()
}

fn begin(stack: *mut u8, takes: bool) -> crowd::Handle {
    ENDS.store(false, Ordering::Release);
    // SAFETY: who had the stack before has ended.
    let thread = unsafe { crowd::spawn_on(stack, STACK, move || sleeper(takes)) };
    crowd::wait_until(|| ASLEEP.load(Ordering::Acquire) == 1);
    thread
}

fn end(thread: crowd::Handle) {
    ENDS.store(true, Ordering::Release);
    thread.join();
}

/// Makes an object that nothing refers to, and has a cycle wait that has looked at all stacks. False where one has ended meanwhile.
#[inline(never)]
fn looked_at_stacks(id: u64) -> bool {
    CYCLE.store(cycle::number(), Ordering::Relaxed);
    HIDDEN.store(!object_of(id, SIZE).expose_provenance(), Ordering::Relaxed);
    STEP.store(IS_TO_WAIT, Ordering::Release);
    concurrent::ask();
    while STEP.load(Ordering::Acquire) == IS_TO_WAIT && !is_over() {
        core::hint::black_box(object_of(id, SIZE));
    }
    if !is_over() {
        return true;
    }
    STEP.store(GOES_ON, Ordering::Release);
    false
}

/// A thread whose stack is watched ends, and another one has a new stack at the same address: what that one writes is not told to the watch of the first.
#[test]
fn a_stack_in_the_place_of_one_that_was_watched_is_read() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("a_stack_in_the_place_of_one_that_was_watched_is_read", &[], || {
        init(&Options::default());
        verifier::watch(Rules::WITH_FINALIZERS);
        assert_eq!(concurrent::turn_on(Some(Way::Watch(Kind::Uffd))), Ok(Way::Watch(Kind::Uffd)));
        at_points(Some(hook));
        let stack = map(ptr::null_mut());
        for id in 0..ROUNDS {
            let first = begin(stack, false);
            while !looked_at_stacks(id) {}
            end(first);
            let second = begin(map(stack), true);
            let done = concurrent::completed()[0];
            STEP.store(GOES_ON, Ordering::Release);
            crowd::wait_until(|| !concurrent::finish_if_ready() && concurrent::completed()[0] > done);
            check(ptr::with_exposed_provenance(!HIDDEN.load(Ordering::Relaxed)), SIZE, id);
            end(second);
        }
    });
}
