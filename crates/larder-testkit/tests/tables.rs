//! Large tables of pointers that are written all over while cycles run: what a round of cleaning has scanned of them is copied, and from then on the words
//! that differ are looked up.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use larder_fixed::ablation::{Ablation, Optimization};
use larder_fixed::concurrent::{Births, Way};
use larder_fixed::inject::{Point, at_points};
use larder_fixed::options::Options;
use larder_fixed::{allocate, concurrent, cycle, free, generations, init, kind};
use larder_sys::watch::Kind;
use larder_testkit::beside::offered;
use larder_testkit::mutator::{check, object_of};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{Random, WITHOUT_SEQUENCES, crowd, for_each_seed, in_child};
use larder_units::Nanos;

/// Words of a table: pages that are not its first or its last, and a part of one in the end.
const WORDS: usize = 20_000;
const SIZE: usize = 40;

/// A table, which alone refers to its objects, and what is expected of each of its words: the pattern of an object, or nothing.
struct Mutator {
    random: Random,
    tables: Words,
    table: usize,
    held: Vec<Option<u64>>,
    next: u64,
}

impl Mutator {
    fn new(tables: Words, table: usize, seed: u64) -> Self {
        // SAFETY: the root keeps it.
        tables.set(table, unsafe { allocate(kind::NORMAL, WORDS * 8) }.expose_provenance());
        let mut new = Self { random: Random::new(seed), tables, table, held: vec![None; WORDS], next: seed << 32 };
        (0..WORDS).for_each(|i| new.make(i));
        new
    }

    fn make(&mut self, i: usize) {
        self.next += 1;
        // SAFETY: a word of the table, which its root keeps.
        unsafe { self.word(i).write(object_of(self.next, SIZE)) };
        self.held[i] = Some(self.next);
    }

    fn word(&self, i: usize) -> *mut *mut u8 {
        core::ptr::with_exposed_provenance_mut::<*mut u8>(self.tables.get(self.table)).wrapping_add(i)
    }

    #[inline(never)]
    fn step(&mut self) {
        let (i, j) = (self.random.below(WORDS), self.random.below(WORDS));
        // SAFETY: words of the table, which its root keeps, and what they refer to.
        unsafe {
            let at = self.word(i);
            match self.random.below(8) {
                0..=2 => self.make(i),
                3 => {
                    at.write(core::ptr::null_mut());
                    self.held[i] = None;
                }
                4 => {
                    // Elsewhere, and not in the page that it was in.
                    at.swap(self.word(j));
                    self.held.swap(i, j);
                }
                5 => {
                    // Away and back again: what is there is what was there, and was written.
                    let object = at.read();
                    at.write_volatile(self.word(j).read());
                    self.word(j).write_volatile(object);
                    let other = at.read_volatile();
                    at.write_volatile(object);
                    self.word(j).write_volatile(other);
                }
                6 => {
                    // Another object at the same address, most often.
                    if let Some(id) = self.held[i] {
                        check(at.read(), SIZE, id);
                        free(at.read());
                        self.make(i);
                    }
                }
                _ => self.check(i),
            }
        }
    }

    fn check(&self, i: usize) {
        // SAFETY: a word of the table.
        let object = unsafe { self.word(i).read() };
        match self.held[i] {
            Some(id) => check(object, SIZE, id),
            None => assert!(object.is_null()),
        }
    }
}

/// How cycles run.
#[derive(Clone, Copy)]
struct Setting {
    kind: Kind,
    threads: usize,
    environment: &'static [(&'static str, &'static str)],
    young: usize,
    births: Births,
    ablation: Ablation,
}

const USUAL: Setting = Setting {
    kind: Kind::Uffd,
    threads: 4,
    environment: &[],
    young: 0,
    births: Births::Late,
    ablation: Ablation::NONE,
};

/// Threads that do so while one cycle follows the other. Each cycle has a chain to trace.
fn go_on(name: &str, setting: Setting) {
    const CYCLES: u64 = 20;
    const CHAIN: u64 = 30_000;
    let Setting { kind, threads, environment, young, births, ablation } = setting;
    if !offered(kind) {
        return;
    }
    for_each_seed(name, environment, |seed| {
        init(&Options { ablation, ..Options::default() });
        verifier::watch(Rules { nothing_dangles: false, ..Rules::WITH_FINALIZERS });
        concurrent::set_births(births);
        generations::set_young_cycles(young);
        concurrent::set_pause_goal(Nanos(1));
        assert_eq!(concurrent::turn_on(Some(Way::Watch(kind))), Ok(Way::Watch(kind)));
        let chain = Words::roots(1);
        for i in 0..CHAIN {
            let next = object_of(i, 32).cast::<usize>();
            // SAFETY: a word of a fresh object.
            unsafe { next.write(chain.get(0)) };
            chain.set(0, next.expose_provenance());
        }
        let tables = Words::roots(threads);
        crowd::all(threads, move |i| {
            let mut mutator = Mutator::new(tables, i, seed * 100 + i as u64);
            while concurrent::completed()[0] < CYCLES {
                (0..50).for_each(|_| mutator.step());
                if !concurrent::is_under_way() {
                    concurrent::ask();
                }
                concurrent::finish_if_ready();
            }
            (0..WORDS).for_each(|i| mutator.check(i));
        });
        assert_eq!(generations::completed() > 0, young > 0);
        let copies = births != Births::Unmarked && !ablation.leaves_out(Optimization::Copies);
        // One thread may have written little while a short cycle marked.
        assert!(threads == 1 || (concurrent::compared_pages() > 0) == copies);
    });
}

#[test]
fn one_thread() {
    go_on("one_thread", Setting { threads: 1, ..USUAL });
}

#[test]
fn four_threads() {
    go_on("four_threads", USUAL);
}

#[test]
fn four_threads_without_sequences() {
    go_on("four_threads_without_sequences", Setting { environment: &[WITHOUT_SEQUENCES], ..USUAL });
}

#[test]
fn four_threads_mprotect() {
    go_on("four_threads_mprotect", Setting { kind: Kind::Mprotect, ..USUAL });
}

#[test]
fn four_threads_born_marked() {
    go_on("four_threads_born_marked", Setting { births: Births::Marked, ..USUAL });
}

#[test]
fn four_threads_born_unmarked() {
    go_on("four_threads_born_unmarked", Setting { births: Births::Unmarked, ..USUAL });
}

#[test]
fn four_threads_young() {
    go_on("four_threads_young", Setting { young: 5, ..USUAL });
}

#[test]
fn four_threads_without_copies() {
    go_on("four_threads_without_copies", Setting { ablation: Ablation::NONE.and(Optimization::Copies), ..USUAL });
}

/// What the marker thread does at points, once each, in the program's place. Sync: the test writes before it asks for a cycle, then the marker thread.
static STEP: AtomicU32 = AtomicU32::new(IDLE);
const IDLE: u32 = 0;
const BEFORE_SECOND_LOOK: u32 = Point::BeforeSecondLook as u32;
const PAGE_COPIED: u32 = Point::PageCopied as u32;
const BEFORE_COMPARING: u32 = Point::BeforeComparing as u32;
/// The last cycle before the objects were made. Sync: as `STEP`.
static CYCLE: AtomicU64 = AtomicU64::new(0);
/// The table, as a root. Sync: as `STEP`.
static TABLE: Word = Word::new(0);
/// Objects that were made for a cycle: complemented addresses, which nobody scans. Sync: as `STEP`.
static MADE: [Word; MOVED] = [const { Word::new(0) }; MOVED];
type Word = core::sync::atomic::AtomicUsize;

/// Words of a page, and pages of a table.
const PAGE: usize = 4096 / 8;
const PAGES: usize = 64;
/// Objects that are moved in a cycle, and the beginning of the words in a page that they are moved to and from.
const MOVED: usize = 100;
const FROM: usize = 200;

fn table_word(page: usize, i: usize) -> *mut usize {
    core::ptr::with_exposed_provenance_mut::<usize>(TABLE.load(Ordering::Relaxed)).wrapping_add(page * PAGE + i)
}

/// Writes the objects' addresses to a page, or zeroes.
fn write(page: usize, objects: bool) {
    for (i, made) in MADE.iter().enumerate() {
        let address = !made.load(Ordering::Relaxed);
        // SAFETY: a word of the table, which a root keeps.
        unsafe { table_word(page, FROM + i).write_volatile(if objects { address } else { 0 }) };
    }
}

/// Takes the step that comes next, if this is its point; the first page is copied and compared before the others.
fn step_at(p: Point, step: u32, next: u32) -> bool {
    !is_over() && p as u32 == step && STEP.compare_exchange(step, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Whether a cycle has ended since the objects were made, which may have found them dead.
fn is_over() -> bool {
    cycle::number() != CYCLE.load(Ordering::Relaxed)
}

/// Objects move from a page that was not looked at yet to one that is copied, and stay there.
fn move_to_what_was_copied(p: Point) {
    if step_at(p, BEFORE_SECOND_LOOK, PAGE_COPIED) {
        write_all(PAGES - 1);
    } else if step_at(p, PAGE_COPIED, IDLE) {
        write(0, true);
        write(PAGES - 1, false);
    }
}

/// Objects are in a page when it is copied, and neither there nor anywhere else in the heap when the copy is looked at; then they come back.
fn move_away_and_back(p: Point) {
    if step_at(p, BEFORE_SECOND_LOOK, PAGE_COPIED) {
        write_all(0);
    } else if step_at(p, PAGE_COPIED, BEFORE_COMPARING) {
        write(0, false);
    } else if step_at(p, BEFORE_COMPARING, IDLE) {
        write(0, true);
    }
}

/// Writes to each page, so that a round finds all of them, and the objects to one.
fn write_all(of_objects: usize) {
    for page in 0..PAGES {
        let word = table_word(page, 0);
        // SAFETY: a word of the table.
        unsafe { word.write_volatile(word.read_volatile()) };
    }
    write(of_objects, true);
}

#[inline(never)]
fn make(id: u64) {
    MADE.iter().for_each(|made| made.store(!object_of(id, SIZE).expose_provenance(), Ordering::Relaxed));
}

/// Makes objects of which no root knows, and has the hook move them in the table in the next cycle. Returns false where it ended too
/// early, or was one that had begun before.
fn move_in_one_cycle(id: u64) -> bool {
    CYCLE.store(cycle::number(), Ordering::Relaxed);
    make(id);
    let (cycles, compared) = (concurrent::completed()[0], concurrent::compared_pages());
    STEP.store(BEFORE_SECOND_LOOK, Ordering::Relaxed);
    concurrent::ask();
    // Without anything made meanwhile there is no second look before the first round.
    while STEP.load(Ordering::Relaxed) == BEFORE_SECOND_LOOK && !is_over() {
        core::hint::black_box(object_of(id, SIZE));
    }
    // The marker thread goes on to clean while nobody finishes the cycle.
    crowd::wait_until(|| STEP.load(Ordering::Relaxed) == IDLE || is_over());
    if STEP.swap(IDLE, Ordering::Relaxed) != IDLE {
        return false;
    }
    crowd::wait_until(|| !concurrent::finish_if_ready() && concurrent::completed()[0] > cycles);
    assert!(concurrent::compared_pages() > compared);
    for (i, made) in MADE.iter().enumerate() {
        // SAFETY: a word of the table.
        let address = unsafe { table_word(0, FROM + i).read() };
        assert_eq!(address, !made.load(Ordering::Relaxed));
        check(core::ptr::with_exposed_provenance(address), SIZE, id);
    }
    true
}

/// Has a hook move them in the table at points.
fn moved_by(name: &str, hook: fn(Point)) {
    const ROUNDS: u64 = 20;
    if !offered(Kind::Uffd) {
        return;
    }
    in_child(name, &[], || {
        init(&Options::default());
        verifier::watch(Rules::WITH_FINALIZERS);
        concurrent::set_pause_goal(Nanos(1));
        assert_eq!(concurrent::turn_on(Some(Way::Watch(Kind::Uffd))), Ok(Way::Watch(Kind::Uffd)));
        let roots = Words::roots(1);
        // SAFETY: the root keeps it. It begins with a block, and so with a page.
        roots.set(0, unsafe { allocate(kind::NORMAL, PAGES * PAGE * 8) }.expose_provenance());
        TABLE.store(roots.get(0), Ordering::Relaxed);
        for page in 0..PAGES {
            // SAFETY: words of the table.
            (0..FROM).for_each(|i| unsafe { table_word(page, i).write(object_of(1, SIZE).expose_provenance()) });
        }
        at_points(Some(hook));
        let mut done = 0;
        while done < ROUNDS {
            done += u64::from(move_in_one_cycle(done));
        }
    });
}

#[test]
fn what_moves_to_a_page_that_was_copied_is_found() {
    moved_by("what_moves_to_a_page_that_was_copied_is_found", move_to_what_was_copied);
}

#[test]
fn what_was_gone_when_a_copy_was_looked_at_is_found() {
    moved_by("what_was_gone_when_a_copy_was_looked_at_is_found", move_away_and_back);
}
