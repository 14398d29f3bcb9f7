//! A second, simple, serial marker, and a walk over every block: they check each cycle while the world is still stopped.
//!
//! The verifier shares no code with the marker it checks. It has its own bitmap and its own stack, finds the object
//! that contains an address by division, and reads the roots by itself: stacks, data segments, thread-local storage,
//! words of the thread records, uncollectable objects, and the ranges that tests gave to [`add_roots`]. It scans them as
//! the marker should, so the two must find the same objects; a test that uses roots which the verifier cannot see
//! (finalizers, procedures of the client) asks for less ([`Rules`]).
//!
//! It uses memory that it mapped before, never malloc: a stopped thread may hold malloc's lock. A violation stops the
//! process with one line.

use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use larder_blocks::block::{Block, NONE, State as BlockState};
use larder_blocks::class::{CLASSES, COUNT};
use larder_blocks::space::Space;
use larder_fixed::{cycle, kind, object, roots, stats};
use larder_percpu::sequence::{SLAB, Slot};
use larder_sys::{die, loader, memory};
use larder_threads::{REGISTRY, ThreadState};
use larder_trace::descriptor;
use larder_units::{BLOCK, Bytes, GRANULE};

use crate::beside;

/// What a test promises about its roots and its objects.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The verifier sees every root, so the marker must not have marked anything that the verifier does not reach.
    pub nothing_else_is_marked: bool,
    /// Words of live objects that lie inside the heap are addresses of allocated objects: the test frees nothing that
    /// it still refers to, and stores no numbers that look like addresses.
    pub nothing_dangles: bool,
    /// A word keeps an object that came to lie at its address later. A cycle beside the program may not look at such a word: what was scanned before, on a
    /// page that nobody has written since, is not scanned again.
    pub older_words_keep: bool,
    /// No thread that the heap does not know uses it: nobody changes a record while the world is stopped.
    pub everybody_stops: bool,
}

impl Rules {
    /// For programs whose every root and pointer is known.
    pub const EXACT: Self =
        Self { nothing_else_is_marked: true, nothing_dangles: true, older_words_keep: true, everybody_stops: true };
    /// For programs with finalizers, whose roots the verifier does not see.
    pub const WITH_FINALIZERS: Self = Self { nothing_else_is_marked: false, ..Self::EXACT };
    /// For programs that store whatever they like.
    pub const WILD: Self = Self { nothing_dangles: false, ..Self::EXACT };
    /// For programs with threads that the heap does not know: these come and go in the middle of a cycle.
    pub const WITH_STRANGERS: Self = Self { nothing_else_is_marked: false, everybody_stops: false, ..Self::EXACT };
}

/// Most objects that are found and not scanned yet.
const STACK: usize = 64 << 20;
/// Most ranges that tests register.
const RANGES: usize = 4096;
/// Pool bins, as `larder_blocks::pool` has them: exact lengths, and one for all longer runs.
const BINS: usize = 64;

struct Verifier {
    rules: Rules,
    space: Option<&'static Space>,
    /// A bit for each granule of the reserved range: set where a reached object begins.
    bits: *mut u64,
    stack: *mut usize,
    top: usize,
    ranges: *mut (usize, usize),
    used: usize,
}

struct Guarded(UnsafeCell<Verifier>);
// SAFETY: changed by `watch` before threads start and by `add_roots` under the allocation lock; otherwise used by the
// collecting thread in a stopped world, which holds that lock.
unsafe impl Sync for Guarded {}

static VERIFIER: Guarded = Guarded(UnsafeCell::new(Verifier {
    rules: Rules::EXACT,
    space: None,
    bits: core::ptr::null_mut(),
    stack: core::ptr::null_mut(),
    top: 0,
    ranges: core::ptr::null_mut(),
    used: 0,
}));

/// Cycles that were verified. Sync: the collector adds; tests read.
static CYCLES: AtomicU64 = AtomicU64::new(0);
/// Objects reached in the last cycle. Sync: as `CYCLES`.
static OBJECTS: AtomicUsize = AtomicUsize::new(0);
/// Bytes of their cells. Sync: as `CYCLES`.
static REACHED: AtomicUsize = AtomicUsize::new(0);

/// Verifies every cycle from now on. The heap is initialised; the world runs. Where the environment asks for it, cycles run beside
/// the program from here on, and less can be asked of them ([`crate::beside`]).
pub fn watch(rules: Rules) {
    watch_alone(beside::as_asked(rules));
    beside::turn_on();
}

/// As [`watch`], where the test says itself which cycles run beside the program, whatever the environment asks for: with one under way all the
/// time, it would wait for ever for the moment when there is none.
pub fn watch_alone(rules: Rules) {
    let (low, high) = stats::plausible_bounds();
    let map = |bytes| memory::map_lazy(Bytes(bytes)).expect("address space for the verifier").as_ptr();
    larder_fixed::lock::with(|| {
        // SAFETY: under the allocation lock, see `Guarded`.
        let v = unsafe { &mut *VERIFIER.0.get() };
        v.rules = rules;
        v.space = Some(find_space());
        v.bits = map(((high - low) / GRANULE.0).div_ceil(8)).cast();
        v.stack = map(STACK * size_of::<usize>()).cast();
    });
    cycle::inspect_with(Some(inspect));
}

/// Changes the rules, for the cycles that begin after this.
pub fn set_rules(rules: Rules) {
    let rules = beside::as_asked(rules);
    // SAFETY: under the allocation lock, see `Guarded`.
    larder_fixed::lock::with(|| unsafe { (*VERIFIER.0.get()).rules = rules });
}

/// Cycles verified so far.
pub fn cycles() -> u64 {
    CYCLES.load(Ordering::Acquire)
}

/// Objects that the last verified cycle reached, and the bytes of their cells.
pub fn reached() -> (usize, usize) {
    (OBJECTS.load(Ordering::Acquire), REACHED.load(Ordering::Acquire))
}

/// Makes the words of `[low, high)` roots, of the heap and of the verifier.
pub fn add_roots(low: usize, high: usize) {
    roots::add(low, high);
    larder_fixed::lock::with(|| {
        // SAFETY: under the allocation lock, see `Guarded`.
        let v = unsafe { &mut *VERIFIER.0.get() };
        if v.ranges.is_null() {
            let bytes = Bytes(RANGES * size_of::<(usize, usize)>());
            v.ranges = memory::map_lazy(bytes).expect("memory for root ranges").as_ptr().cast();
        }
        assert!(v.used < RANGES, "more root ranges than the verifier has room for");
        // SAFETY: `used` is below the capacity.
        unsafe { v.ranges.add(v.used).write((low, high)) };
        v.used += 1;
    });
}

/// Takes a range back that was given to [`add_roots`].
pub fn remove_roots(low: usize, high: usize) {
    larder_fixed::lock::with(|| {
        // SAFETY: under the allocation lock, see `Guarded`.
        let v = unsafe { &mut *VERIFIER.0.get() };
        // SAFETY: the first `used` entries are initialised.
        let ranges = unsafe { core::slice::from_raw_parts_mut(v.ranges, v.used) };
        let at = ranges.iter().position(|r| *r == (low, high)).expect("the range was added");
        ranges[at] = ranges[v.used - 1];
        v.used -= 1;
    });
    // After: what the verifier knows of, the heap must know of.
    roots::remove(low, high);
}

/// Finds the heap's space as a debugger would: in the program's data, by what its own functions say about it.
///
/// The heap does not show its space, and a verifier that asked the heap where an object lies would verify nothing.
fn find_space() -> &'static Space {
    let (low, high) = stats::plausible_bounds();
    let blocks = (high - low) / BLOCK.0;
    let is_space = |s: &Space| {
        let table = s.table();
        s.base() == low
            && s.reserved().0 == blocks
            && s.marks_of(0, 6) == table + blocks * size_of::<Block>()
            && s.marks_of(0, 8) == s.marks_of(0, 6) + (blocks << 6)
    };
    let mut found = None;
    loader::for_each_object(|program| {
        program.writable_ranges(|from, to| {
            let last = to.saturating_sub(size_of::<Space>());
            for at in (from.next_multiple_of(align_of::<Space>())..=last).step_by(align_of::<Space>()) {
                // SAFETY: the range is readable for the whole of a `Space`, which is only words.
                let space = unsafe { &*core::ptr::with_exposed_provenance::<Space>(at) };
                if found.is_none() && is_space(space) {
                    found = Some(space);
                }
            }
        });
        false
    });
    found.expect("the heap's space lies in the program's data")
}

/// A cell (or large object) that contains some address.
#[derive(Clone, Copy)]
struct Spot {
    block: &'static Block,
    base: usize,
    bytes: usize,
}

fn inspect() {
    // SAFETY: the collecting thread, in a stopped world.
    let v = unsafe { &mut *VERIFIER.0.get() };
    let Some(space) = v.space else { return };
    let mut walk = Walk { v, space, low: space.base(), blocks: space.frontier().0 };
    walk.forget();
    if walk.v.rules.everybody_stops {
        walk.check_table();
    }
    walk.check_buffers();
    walk.scan_roots();
    walk.drain();
    walk.compare();
    // Release, with the loads in `cycles` and `reached`: the figures belong together.
    CYCLES.fetch_add(1, Ordering::Release);
}

struct Walk<'a> {
    v: &'a mut Verifier,
    space: &'static Space,
    low: usize,
    /// Blocks below the frontier.
    blocks: usize,
}

impl Walk<'_> {
    fn block(&self, index: usize) -> &'static Block {
        if index >= self.blocks {
            die!("verifier: block {index} is beyond the frontier {}", self.blocks);
        }
        // SAFETY: below the frontier.
        unsafe { self.space.block(index) }
    }

    /// Clears the bits of the last cycle.
    fn forget(&mut self) {
        let bytes = Bytes((self.blocks * BLOCK.0 / GRANULE.0).div_ceil(8)).to_pages_rounded_up().to_bytes();
        // SAFETY: the bitmap is the verifier's own mapping, and as long as the reserved range needs.
        unsafe { memory::discard(self.v.bits.cast(), bytes) };
        self.v.top = 0;
    }

    /// Sets the bit of an object; says whether it was clear.
    fn reach(&mut self, base: usize) -> bool {
        let granule = (base - self.low) / GRANULE.0;
        // SAFETY: the bitmap covers the reserved range.
        let word = unsafe { &mut *self.v.bits.add(granule / 64) };
        let new = *word >> (granule % 64) & 1 == 0;
        *word |= 1 << (granule % 64);
        new
    }

    fn is_reached(&self, base: usize) -> bool {
        let granule = (base - self.low) / GRANULE.0;
        // SAFETY: the bitmap covers the reserved range.
        unsafe { *self.v.bits.add(granule / 64) >> (granule % 64) & 1 == 1 }
    }

    /// Where the cell that contains `address` lies, by division.
    fn locate(&self, address: usize) -> Option<Spot> {
        let offset = address.wrapping_sub(self.low);
        if offset >= self.blocks * BLOCK.0 {
            return None;
        }
        let mut index = offset / BLOCK.0;
        let mut block = self.block(index);
        if block.state() == BlockState::Tail {
            index = block.head.get() as usize;
            block = self.block(index);
        }
        let within = offset - index * BLOCK.0;
        let start = self.low + index * BLOCK.0;
        match block.state() {
            BlockState::Small => {
                let bytes = block.cell.get() as usize;
                let cell = within / bytes;
                (cell < block.cells.get() as usize).then(|| Spot { block, base: start + cell * bytes, bytes })
            }
            BlockState::Large if within < block.size.get() => {
                Some(Spot { block, base: start, bytes: block.size.get() })
            }
            _ => None,
        }
    }

    /// Follows a word. `holder` is the object that holds it, 0 for a root; interior pointers of stacks always count.
    fn follow(&mut self, word: usize, holder: usize, always: bool) {
        if word.wrapping_sub(self.low) >= self.blocks * BLOCK.0 {
            return;
        }
        let spot = self.locate(word);
        if let Some(spot) = spot
            && !always
            && !roots::displacement_is_valid(word - spot.base)
        {
            return;
        }
        let allocated = object::base(word);
        // Whether the object was reached before must not decide which arm this is.
        #[allow(clippy::collapsible_match)]
        match spot {
            Some(spot) if allocated == Some(spot.base) => {
                if self.reach(spot.base) {
                    if self.v.top == STACK {
                        die!("verifier: more than {STACK} objects at once");
                    }
                    // SAFETY: below the capacity.
                    unsafe { self.v.stack.add(self.v.top).write(spot.base) };
                    self.v.top += 1;
                }
            }
            _ if allocated.is_some() => {
                die!(
                    "verifier: {word:#x} is in no cell, but the heap finds an object at {:#x}",
                    allocated.unwrap_or(0)
                );
            }
            _ if holder != 0 && self.v.rules.nothing_dangles => {
                die!(
                    "verifier: the object {holder:#x} refers to {word:#x}, which is free (cycle {})",
                    cycle::number() + 1
                );
            }
            _ => {}
        }
    }

    fn follow_range(&mut self, low: usize, high: usize, holder: usize, always: bool) {
        let low = low.next_multiple_of(8);
        for at in (low..high.saturating_sub(7)).step_by(8) {
            // SAFETY: the range is a root or an object, and the world is stopped.
            let word = unsafe { core::ptr::with_exposed_provenance::<usize>(at).read() };
            self.follow(word, holder, always);
        }
    }

    fn scan_roots(&mut self) {
        for i in 0..self.v.used {
            // SAFETY: the first `used` entries are initialised.
            let (low, high) = unsafe { self.v.ranges.add(i).read() };
            self.follow_range(low, high, 0, false);
        }
        // SAFETY: the collector holds the registry's lock during a stop.
        unsafe {
            REGISTRY.for_each_while_locked(|t| {
                if matches!(t.state(), ThreadState::Running | ThreadState::Blocked) {
                    self.follow_range(t.stack_pointer(), t.stack_base(), 0, true);
                    for (low, high) in t.alternate_stacks().into_iter().flatten() {
                        self.follow_range(low, high, 0, true);
                    }
                }
                for word in t.roots() {
                    self.follow(word, 0, true);
                }
            });
        }
        loader::for_each_object(|o| {
            o.writable_ranges(|low, high| self.follow_range(low, high, 0, false));
            if o.tls_size() > 0 {
                // SAFETY: as above.
                unsafe {
                    REGISTRY.for_each_while_locked(|t| {
                        let lives = matches!(t.state(), ThreadState::Running | ThreadState::Blocked);
                        // SAFETY: the thread is stopped, or this one, and the loader's list is held.
                        if lives && let Some(at) = loader::tls_block(t.thread_pointer(), o.tls_module) {
                            self.follow_range(at.addr(), at.addr() + o.tls_size(), 0, false);
                        }
                    });
                }
            }
            true
        });
        for index in 0..self.blocks {
            let b = self.block(index);
            if matches!(b.state(), BlockState::Small | BlockState::Large) && kind::uncollectable(b.kind.get() as usize)
            {
                for cell in 0..b.cells.get() as usize {
                    let base = self.low + index * BLOCK.0 + cell * b.cell.get() as usize;
                    if object::base(base).is_some() {
                        self.follow(base, 0, true);
                    }
                }
            }
        }
    }

    fn drain(&mut self) {
        while self.v.top > 0 {
            self.v.top -= 1;
            // SAFETY: below the old top.
            let base = unsafe { self.v.stack.add(self.v.top).read() };
            let Some(spot) = self.locate(base) else { die!("verifier: lost the object {base:#x}") };
            self.scan(spot, spot.block.descriptor.get());
        }
    }

    fn scan(&mut self, spot: Spot, descriptor: usize) {
        let word_at = |offset: usize| {
            if offset + 8 > spot.bytes {
                die!("verifier: descriptor {descriptor:#x} leaves the object {:#x} of {} bytes", spot.base, spot.bytes);
            }
            // SAFETY: inside the object.
            unsafe { core::ptr::with_exposed_provenance::<usize>(spot.base + offset).read() }
        };
        match descriptor & descriptor::TAG {
            descriptor::LENGTH => {
                let length = descriptor & !7;
                if length > spot.bytes {
                    die!("verifier: {length} bytes to scan in {} at {:#x}", spot.bytes, spot.base);
                }
                self.follow_range(spot.base, spot.base + length, spot.base, false);
            }
            descriptor::BITMAP => {
                for i in 0..62 {
                    if descriptor >> (63 - i) & 1 == 1 {
                        let word = word_at(i * 8);
                        self.follow(word, spot.base, false);
                    }
                }
            }
            descriptor::PER_OBJECT if descriptor as isize >= 0 => {
                let own = word_at(descriptor & !descriptor::TAG);
                if own & descriptor::TAG == descriptor::LENGTH || own & descriptor::TAG == descriptor::BITMAP {
                    self.scan(spot, own);
                } else {
                    die!("verifier: the object {:#x} names the descriptor {own:#x}, which tests do not use", spot.base);
                }
            }
            _ => die!("verifier: descriptor {descriptor:#x} of {:#x}, which tests do not use", spot.base),
        }
    }

    /// Compares the marks with what was reached.
    fn compare(&mut self) {
        let (mut objects, mut bytes) = (0, 0);
        for index in 0..self.blocks {
            let b = self.block(index);
            if !matches!(b.state(), BlockState::Small | BlockState::Large) {
                continue;
            }
            for cell in 0..b.cells.get() as usize {
                let base = self.low + index * BLOCK.0 + cell * b.cell.get() as usize;
                let (marked, reached) = (object::is_marked(base), self.is_reached(base));
                if reached && !marked && self.v.rules.older_words_keep {
                    die!(
                        "verifier: the object {base:#x} of {} bytes, kind {}, is reachable but not marked (cycle {})",
                        object::size(base),
                        b.kind.get(),
                        cycle::number() + 1
                    );
                }
                if marked && !reached && self.v.rules.nothing_else_is_marked {
                    die!(
                        "verifier: the object {base:#x} of {} bytes, kind {}, is marked but not reachable (cycle {})",
                        object::size(base),
                        b.kind.get(),
                        cycle::number() + 1
                    );
                }
                if reached {
                    objects += 1;
                    bytes += object::size(base);
                }
            }
        }
        OBJECTS.store(objects, Ordering::Relaxed);
        REACHED.store(bytes, Ordering::Relaxed);
    }

    /// No buffer of a thread holds cells: they were all given back to their blocks. (Buffers of CPUs are closed the same
    /// way, but their slots are not visible from here; what a buffer hands out twice, tests find by its content.)
    fn check_buffers(&self) {
        // SAFETY: the collector holds the registry's lock during a stop.
        unsafe {
            REGISTRY.for_each_while_locked(|t| {
                if t.buffers().is_null() {
                    return;
                }
                // SAFETY: a slab of slots that is never unmapped.
                let slots = core::slice::from_raw_parts(t.buffers().cast::<Slot>(), SLAB / size_of::<Slot>());
                for slot in slots {
                    let (from, to) = (slot.frontier.load(Ordering::Relaxed), slot.limit.load(Ordering::Relaxed));
                    if from < to {
                        die!("verifier: thread {} still has the cells {from:#x}..{to:#x} in a buffer", t.tid());
                    }
                }
            });
        }
    }

    /// Every record says what its neighbours and its list say.
    fn check_table(&self) {
        let mut small = [[Chain::EMPTY; kind::MAX]; COUNT];
        let mut large = Chain::EMPTY;
        let mut free = [Chain::EMPTY; BINS];
        let (mut discarded, mut owned, mut owners) = (0, 0, 0);
        let mut index = 0;
        while index < self.blocks {
            let b = self.block(index);
            let state = b.state();
            let length = match state {
                BlockState::Untouched => 1,
                BlockState::Tail => {
                    die!("verifier: block {index} is the tail of block {}, which is shorter", b.head.get())
                }
                _ => (b.blocks.get() as usize).max(1),
            };
            if index + length > self.blocks {
                die!("verifier: the run at block {index} of {length} blocks passes the frontier {}", self.blocks);
            }
            // What frees without a lock takes a record that counts frees for that of a run of cells.
            let others = if state == BlockState::Small { index + 1 } else { index };
            if let Some(i) = (others..index + length).find(|&i| self.block(i).frees_until_look.get() != 0) {
                die!("verifier: block {i} counts frees and is no first block of a run of cells");
            }
            match state {
                BlockState::Small => {
                    self.check_small(index, b);
                    owners = owners.max(b.lists() + 1);
                    if b.lists() == 0 {
                        small[b.class.get() as usize][b.kind.get() as usize].meet(index, b);
                    }
                }
                BlockState::Large => {
                    self.check_large(index, b);
                    large.meet(index, b);
                }
                BlockState::Free => {
                    let last = self.block(index + length - 1);
                    if last.state() != BlockState::Free
                        || last.blocks.get() as usize != length
                        || last.head.get() as usize != index
                    {
                        die!("verifier: the ends of the free run at block {index} of {length} blocks disagree");
                    }
                    if (index + 1..index + length - 1).any(|i| self.block(i).state() != BlockState::Untouched) {
                        die!("verifier: the free run at block {index} of {length} blocks overlaps something");
                    }
                    free[length.min(BINS - 1)].meet(index, b);
                    discarded += if b.size.get() == 1 { length } else { 0 };
                }
                BlockState::Owned => {
                    if (index + 1..index + length).any(|i| self.block(i).state() != BlockState::Untouched) {
                        die!("verifier: the owned run at block {index} of {length} blocks overlaps something");
                    }
                    owned += length;
                }
                BlockState::Untouched | BlockState::Tail => {}
            }
            if matches!(state, BlockState::Small | BlockState::Large) {
                for i in index + 1..index + length {
                    let tail = self.block(i);
                    if tail.state() != BlockState::Tail || tail.head.get() as usize != index {
                        die!("verifier: block {i} should be a tail of block {index}, which is {length} blocks long");
                    }
                }
            }
            index += length;
        }
        let apart = stats::kept_apart();
        let is_wrong = |part: &Range<usize>| {
            part.end > self.blocks || part.clone().any(|i| self.block(i).state() != BlockState::Untouched)
        };
        if apart.iter().any(is_wrong) {
            die!("verifier: blocks {apart:?}, which are kept apart, overlap something");
        }
        let known = stats::snapshot().unmapped / BLOCK.0;
        if known != discarded + apart.iter().map(|part| part.len()).sum::<usize>() {
            die!(
                "verifier: the pool counts {known} discarded blocks, its runs hold {discarded}, and {apart:?} are kept"
            );
        }
        let counted = larder_fixed::sharing::figures();
        if counted.free != owned || counted.consumed != counted.used + owned {
            die!("verifier: {owned} blocks are free and owned, but {counted:?}");
        }
        self.check_small_chains(&small, 0);
        for owner in 1..owners {
            small = [[Chain::EMPTY; kind::MAX]; COUNT];
            for index in 0..self.blocks {
                let b = self.block(index);
                if b.state() == BlockState::Small && b.lists() == owner {
                    small[b.class.get() as usize][b.kind.get() as usize].meet(index, b);
                }
            }
            self.check_small_chains(&small, owner);
        }
        self.check_chain(&large, |b| b.state() == BlockState::Large);
        for (bin, chain) in free.iter().enumerate() {
            self.check_chain(chain, |b| {
                b.state() == BlockState::Free && (b.blocks.get() as usize).min(BINS - 1) == bin
            });
        }
    }

    /// Every list of an owner holds the blocks of a class and kind.
    fn check_small_chains(&self, small: &[[Chain; kind::MAX]; COUNT], owner: usize) {
        for (class, kinds) in small.iter().enumerate() {
            for (kind, chain) in kinds.iter().enumerate() {
                self.check_chain(chain, |b| {
                    b.state() == BlockState::Small
                        && (b.class.get() as usize, b.kind.get() as usize) == (class, kind)
                        && b.lists() == owner
                });
            }
        }
    }

    fn check_small(&self, index: usize, b: &Block) {
        let (class, kind) = (b.class.get() as usize, b.kind.get() as usize);
        let known = class < COUNT && kind < kind::count();
        if !known {
            die!("verifier: block {index} is of class {class} and kind {kind}, which do not exist");
        }
        let c = &CLASSES[class];
        let as_class = b.cell.get() == c.cell
            && c.may_be_long(b.blocks.get() as usize)
            && b.cells.get() as usize == c.cells_in(b.blocks.get() as usize)
            && b.reciprocal.get() == c.reciprocal
            && b.marks.get() == self.space.marks_of(index, c.mark_shift);
        if !as_class {
            die!("verifier: the record of block {index} is not that of class {class}");
        }
        self.check_descriptor(index, b, c.cell as usize);
    }

    fn check_large(&self, index: usize, b: &Block) {
        let (size, blocks) = (b.size.get(), b.blocks.get() as usize);
        let fits = size > (blocks - 1) * BLOCK.0 && size <= blocks * BLOCK.0 && b.cells.get() == 1 && b.cell.get() == 0;
        if !fits || b.marks.get() != self.space.marks_of(index, 6) {
            die!("verifier: the large object at block {index} of {size} bytes in {blocks} blocks has a wrong record");
        }
        self.check_descriptor(index, b, size);
    }

    fn check_descriptor(&self, index: usize, b: &Block, size: usize) {
        let (kind, descriptor) = (b.kind.get() as usize, b.descriptor.get());
        let expected = match kind {
            kind::POINTER_FREE | kind::POINTER_FREE_UNCOLLECTABLE => 0,
            kind::NORMAL | kind::UNCOLLECTABLE => size,
            kind::TYPED => (size - 8) | descriptor::PER_OBJECT,
            _ => return,
        };
        if descriptor != expected {
            die!("verifier: block {index} of kind {kind} has the descriptor {descriptor:#x}, not {expected:#x}");
        }
    }

    /// Follows a list from its head: it holds exactly the blocks that the walk met.
    fn check_chain(&self, chain: &Chain, belongs: impl Fn(&Block) -> bool) {
        if chain.blocks == 0 {
            return;
        }
        if chain.heads != 1 {
            let b = self.block(chain.some);
            die!(
                "verifier: {} {:?} blocks of class {}, kind {} are one list, but have {} heads, the last block {}",
                chain.blocks,
                b.state(),
                b.class.get(),
                b.kind.get(),
                chain.heads,
                chain.head
            );
        }
        let (mut at, mut before, mut n) = (chain.head, NONE, 0);
        while at != NONE {
            let b = self.block(at as usize);
            if b.previous.get() != before || !belongs(b) {
                die!("verifier: block {at} is in a list behind block {before}, but says otherwise");
            }
            n += 1;
            if n > chain.blocks {
                break;
            }
            (before, at) = (at, b.next.get());
        }
        if n != chain.blocks {
            let is_listed = |wanted: usize| {
                let (mut at, mut left) = (chain.head, n);
                while at != NONE && at as usize != wanted && left > 0 {
                    (at, left) = (self.block(at as usize).next.get(), left - 1);
                }
                at as usize == wanted
            };
            let lost = (0..self.blocks).find(|&i| belongs(self.block(i)) && !is_listed(i)).unwrap_or(usize::MAX);
            let b = self.block(lost);
            die!(
                "verifier: a list holds {n} of {} blocks; not block {lost} (class {}, kind {}), between {:#x} and {:#x}",
                chain.blocks,
                b.class.get(),
                b.kind.get(),
                b.previous.get(),
                b.next.get()
            );
        }
    }
}

/// What the walk over the table knows about one list.
#[derive(Clone, Copy)]
struct Chain {
    blocks: usize,
    heads: usize,
    head: u32,
    some: usize,
}

impl Chain {
    const EMPTY: Self = Self { blocks: 0, heads: 0, head: NONE, some: 0 };

    fn meet(&mut self, index: usize, b: &Block) {
        self.blocks += 1;
        self.some = index;
        if b.previous.get() == NONE {
            self.heads += 1;
            self.head = index as u32;
        }
    }
}
