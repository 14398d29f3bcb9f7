//! The heap: its parts, its making, and the slow paths of allocation.

use core::cell::UnsafeCell;
use core::ops::{Deref, Range};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use larder_lab::{Buffers, ChunkSource, Retired, Shape, Way};
use larder_policy::generations::{YoungFacts, young_limit, young_reserve};
use larder_sync::lock::Lock;
use larder_sync::safepoint::Safepoint;
use larder_sys::{cpus, memory, rseq_area};
use larder_units::{Bytes, Nanos};

use crate::config::{Barrier, Config, CreateError};
use crate::cycle::{Verifier, Worker, stripes};
use crate::functions::{ClassFunction, Functions};
use crate::gang::{Gang, MOST};
use crate::handles::Handles;
use crate::host::{Collection, Host};
use crate::large::Large;
use crate::list::{List, Table};
use crate::mutator::Mutator;
use crate::old::{LEAD, Old};
use crate::source::{OldSource, YoungSource};
use crate::space::{BLOCK, LARGEST_SMALL, Space, rounded};
use crate::stats::{Counters, Stats};
use crate::thread::{Registry, Thread, Threads};
use crate::young::Young;

/// There is no room for an object, not even after a full collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What was asked for.
    pub wanted: Bytes,
}

impl core::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "no room for an object of {}: the heap is full of live objects; make it larger", self.wanted)
    }
}

/// What an allocation lacks, and a collection is asked to provide before it lets the others go on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Want {
    /// Nothing: the program asked for a collection.
    Nothing,
    /// Room for a young object of so many bytes.
    Young(usize),
    /// Room for an old object of so many bytes.
    Old(usize),
    /// A large object of so many bytes, old from the beginning or not.
    Large(usize, bool),
}

/// What only the collecting thread uses, under the collection lock.
pub(crate) struct Own {
    /// Cards that were dirty when the collection began.
    pub cards: List<u32>,
    /// Objects that ambiguous roots and pins keep where they are.
    pub pinned: List<usize>,
    /// Extents of what a compaction leaves where it is.
    pub obstacles: List<[usize; 2]>,
    /// What a compaction has moved, by stripe. Sync: `compact.done`.
    pub done: Table<AtomicU32>,
    /// What the verifier needs, where it runs.
    pub verifier: Option<Verifier>,
    /// Bytes that the last young collection copied or promoted, and that the last full one marked.
    pub traced: [usize; 2],
    /// Bytes that the last young collection promoted.
    pub promoted: usize,
    /// Pages of the old generation that should get memory when the pause is over.
    pub wanted: Range<usize>,
    /// Blocks that the last young collection kept because of pins.
    pub kept: usize,
    /// When the last collection ended.
    pub last_end: Nanos,
    /// The young generation's size now.
    pub young_size: usize,
    /// Bytes of old and large objects that the last full collection left.
    pub live: usize,
}

/// A generational moving heap. See the crate's documentation.
pub struct Heap<H: Host> {
    pub(crate) host: H,
    pub(crate) config: Config,
    pub(crate) space: Space,
    pub(crate) young: Young,
    pub(crate) buffers: Buffers<YoungSource>,
    /// For objects that are old from the beginning.
    pub(crate) old_buffers: Buffers<OldSource>,
    pub(crate) functions: Functions,
    /// The sequence for buffers of processors, while they have them. Sync: as `functions`.
    shape: UnsafeCell<Shape>,
    pub(crate) old: Old,
    pub(crate) large: Large,
    pub(crate) gang: Gang,
    pub(crate) registry: Registry,
    pub(crate) safepoint: Safepoint,
    pub(crate) handles: Handles,
    pub(crate) counters: Counters,
    /// Held by the thread that collects.
    pub(crate) collecting: Lock,
    /// Bytes of young large objects since the last collection. Sync: Relaxed; a hint.
    pub(crate) large_since: AtomicUsize,
    /// Refills since the heap was made, for the stress mode. Sync: Relaxed; a count.
    pub(crate) refills: AtomicUsize,
    /// Slots of old objects that may hold young references, from full store buffers. Sync: `stores_lock`, or a stopped world.
    pub(crate) remembered: UnsafeCell<List<usize>>,
    pub(crate) stores_lock: Lock,
    /// Sync: worker `i` by collector `i`, within a phase of the gang; all by the collecting thread between phases.
    pub(crate) workers: [UnsafeCell<Option<Worker>>; MOST],
    /// Sync: `collecting`.
    pub(crate) own: UnsafeCell<Own>,
}

// SAFETY: every cell says what orders its accesses; `H` is `Sync`.
unsafe impl<H: Host> Sync for Heap<H> {}

/// A heap, which ends with this value. Every mutator has left by then: they borrow it.
pub struct Owned<H: Host>(NonNull<Heap<H>>);

// SAFETY: owning a heap is owning shared memory and threads of its own; the host goes with it.
unsafe impl<H: Host + Send> Send for Owned<H> {}
// SAFETY: a shared `Owned` gives shared references to the heap.
unsafe impl<H: Host> Sync for Owned<H> {}

impl<H: Host> Deref for Owned<H> {
    type Target = Heap<H>;
    fn deref(&self) -> &Heap<H> {
        // SAFETY: made by `create`, and lives until `drop`.
        unsafe { self.0.as_ref() }
    }
}

impl<H: Host> Drop for Owned<H> {
    fn drop(&mut self) {
        self.gang.end();
        // SAFETY: nobody else refers to it any more; `create` wrote it into a mapping of this size.
        unsafe {
            core::ptr::drop_in_place(self.0.as_ptr());
            memory::unmap(self.0.as_ptr().cast(), Bytes(size_of::<Heap<H>>()).to_pages_rounded_up().to_bytes());
        }
    }
}

impl<H: Host> Owned<H> {
    /// Gives up the typed owner; [`Owned::from_raw`] brings it back. For doors whose callers are not Rust.
    pub fn into_raw(self) -> NonNull<Heap<H>> {
        let heap = self.0;
        core::mem::forget(self);
        heap
    }

    /// # Safety
    /// The pointer came from [`Owned::into_raw`], and no mutator is attached to the heap.
    pub unsafe fn from_raw(heap: NonNull<Heap<H>>) -> Self {
        Self(heap)
    }
}

impl<H: Host> Heap<H> {
    /// Makes a heap and starts its collectors.
    pub fn create(config: Config, host: H) -> Result<Owned<H>, CreateError> {
        const { assert!(H::TAG_MASK <= 7) };
        config.check()?;
        if !matches!(host.forwarding_word(), 0 | 8) {
            return Err(CreateError::Setting("the forwarding word must be one of an object's first two: at 0 or 8"));
        }
        let collectors = match config.collectors {
            0 => cpus::usable().clamp(1, MOST),
            n => n,
        };
        let most_young = config.young.0.max(config.most_young.0).next_multiple_of(2 * BLOCK);
        // And blocks that collectors have begun to fill.
        let young_range = young_reserve(Bytes(most_young)).0.next_multiple_of(BLOCK)
            + collectors * (crate::config::OLDEST as usize + 1) * BLOCK;
        let lead = if config.poison { LEAD } else { 0 };
        let space = Space::reserve(config.old.0 + lead, config.old.0, young_range)?;
        let young = Young::new(space.young.clone())?;
        let old = Old::new(space.old.clone(), config.old.0, lead);
        let large = Large::new(space.large.clone())?;
        let slots = (space.young.end - space.old.start) / 8;
        let mut workers = [const { UnsafeCell::new(None) }; MOST];
        for worker in &mut workers[..collectors] {
            *worker.get_mut() = Some(Worker::new(slots / 2, slots)?);
        }
        let own = Own {
            cards: List::with_capacity((space.young.start - space.old.start) / crate::space::CARD)?,
            pinned: List::with_capacity(slots)?,
            obstacles: List::with_capacity((space.old.end - space.old.start) / crate::space::REGION + 1)?,
            done: Table::zeroed(stripes(space.old.end - space.old.start))?,
            verifier: if config.verify { Some(Verifier::new(&space)?) } else { None },
            traced: [0; 2],
            promoted: 0,
            wanted: 0..0,
            kept: 0,
            last_end: larder_sys::clock::now(),
            young_size: config.young.0.next_multiple_of(2 * BLOCK),
            live: 0,
        };
        let heap = Self {
            host,
            config,
            young,
            buffers: Buffers::new(YoungSource::new(), config.buffers),
            old_buffers: Buffers::new(OldSource::new(), config.old_buffers),
            functions: Functions::new::<H>(Way::Thread),
            shape: UnsafeCell::new(Shape::NONE),
            old,
            large,
            gang: Gang::new()?,
            registry: Registry::new(),
            safepoint: Safepoint::new(),
            handles: Handles::new()?,
            counters: Counters::default(),
            collecting: Lock::new(),
            large_since: AtomicUsize::new(0),
            refills: AtomicUsize::new(0),
            remembered: UnsafeCell::new(List::with_capacity(slots / 8)?),
            stores_lock: Lock::new(),
            workers,
            own: UnsafeCell::new(own),
            space,
        };
        let limit = if config.null {
            config.young.0
        } else {
            young_limit(YoungFacts { size: config.young, survived: Bytes::ZERO }).0
        };
        heap.young.allow(limit.div_ceil(BLOCK));
        heap.counters.young_bytes.store(config.young.0 as u64, Ordering::Relaxed);
        let at = memory::map_lazy(Bytes(size_of::<Self>()).to_pages_rounded_up().to_bytes())?.cast::<Self>();
        // SAFETY: a fresh mapping, page-aligned and long enough.
        unsafe { at.write(heap) };
        let owned = Owned(at);
        // SAFETY: parts of one heap, which does not move any more.
        unsafe {
            owned.buffers.source().connect(&owned.space, &owned.young);
            owned.old_buffers.source().connect(&owned.space, &owned.old);
        }
        let ready = owned.buffers.set_up().map_err(CreateError::Buffers)?;
        owned.old_buffers.set_up().map_err(CreateError::Buffers)?;
        owned.functions.use_set::<H>(ready.way);
        owned.publish_shape();
        if !config.null {
            owned.gang.start(collectors - 1);
        }
        Ok(owned)
    }

    /// The host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it has done.
    pub fn stats(&self) -> Stats {
        let (young, old) = (self.buffers.statistics(), self.old_buffers.statistics());
        Stats {
            old_bytes: self.old.used() as u64,
            buffers: young.labs,
            buffer_bytes: young.lab_bytes,
            unused_bytes: young.partly_used_bytes,
            redirected: young.redirected,
            flips: young.flips_to_processors + young.flips_to_threads,
            by_threads: young.collections_by_threads,
            by_processors: young.collections_by_processors,
            transactions: young.transactions_succeeded,
            transactions_failed: young.transactions_failed,
            transactions_invalid: young.transactions_invalid,
            sidelined: young.sidelined,
            sidelined_bytes: young.sidelined_bytes,
            sidelined_unused: young.sideline_unused,
            sidelined_unused_bytes: young.sideline_unused_bytes,
            partly_used: young.partly_used,
            old_buffers: old.labs,
            old_buffer_bytes: old.lab_bytes,
            direct: young.direct,
            singly: young.singly,
            old_direct: old.direct,
            old_singly: old.singly,
            ..self.counters.read()
        }
    }

    /// The allocation buffers of the young generation, and what they did.
    pub fn buffers(&self) -> &Buffers<YoungSource> {
        &self.buffers
    }

    /// The allocation buffers of the old generation, for objects that are old from the beginning, and what they did.
    pub fn old_buffers(&self) -> &Buffers<OldSource> {
        &self.old_buffers
    }

    /// The function by which a class allocates its instances of so many words of 8 bytes; `None` above 40 words, and for none.
    pub fn class_function(&self, words: usize) -> Option<ClassFunction<H>> {
        ClassFunction::new(self.buffers.way(), words)
    }

    /// The allocation functions of the set in use, changed at each flip.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    fn publish_shape(&self) {
        let shape = if self.buffers.way().is_by_thread() { None } else { self.buffers.shape() };
        // SAFETY: the world is stopped, or no thread is attached yet.
        unsafe { *self.shape.get() = shape.unwrap_or(Shape::without_index(self.buffers.owners())) };
    }

    /// The buffers have been flipped, in a stopped world: allocations go another way.
    pub(crate) fn flipped(&self, threads: &Threads) {
        let way = self.buffers.way();
        self.functions.use_set::<H>(way);
        for thread in threads.iter() {
            // SAFETY: it stands still, at a safepoint.
            unsafe { self.buffers.aim(&thread.near, thread.thread_pointer.get()) };
        }
        self.publish_shape();
        self.host.flipped(way);
    }

    /// Attaches the calling thread: what it allocates, and its roots, belong to the mutator. Waits while a collection is on, and stops the world
    /// itself where the thread is one too many for buffers of threads' own (`larder_lab::Lowest::FewThreads`).
    ///
    /// With [`Config::ambiguous_stacks`](crate::Config::ambiguous_stacks) the thread's stack is looked through from here on.
    pub fn attach(&self) -> Result<Mutator<'_, H>, CreateError> {
        // Neither our sequences for threads of a heap nor those that a host emits ask: a thread that the C library did not make looks as if
        // it were registered.
        let by_sequences = self.buffers.processors() != 0;
        if by_sequences && !rseq_area::register_here() {
            return Err(CreateError::Setting(
                "the kernel refuses this thread's restartable sequences: create it with pthread_create",
            ));
        }
        let stack_base = if self.config.ambiguous_stacks {
            let Some(base) = larder_sys::thread::stack_base() else {
                return Err(CreateError::Setting(
                    "cannot find out where this thread's stack begins: attach it without ambiguous stacks",
                ));
            };
            base
        } else {
            core::ptr::null_mut()
        };
        let thread = self.registry.join()?;
        // While the thread is safe: who stops the world holds the registry's lock.
        let is_due_to_flip = self.buffers.is_due_to_flip(|| self.registry.with(|threads| threads.iter().count()));
        // A collection may be on, which reads the record of a thread that is safe and, in a flip, writes it.
        self.safepoint.leave(&thread.status);
        thread.card_bias.set(self.space.card_bias());
        thread.barrier.set(self.config.barrier as u32);
        thread.shape.set(self.shape.get());
        thread.heap.set(core::ptr::from_ref(self).cast());
        thread.stack_base.set(stack_base);
        thread.thread_pointer.set(if by_sequences {
            larder_sys::thread::thread_pointer()
        } else {
            core::ptr::null_mut()
        });
        // Not before: no flip comes now until the thread's next safepoint.
        // SAFETY: the calling thread's.
        unsafe { self.buffers.aim(&thread.near, thread.thread_pointer.get()) };
        if is_due_to_flip {
            self.flip(thread);
        }
        Ok(Mutator::new(self, thread))
    }

    /// Stops the world for a flip, unless somebody else has done it.
    fn flip(&self, thread: &Thread) {
        self.while_safe(thread, || {
            let _guard = self.collecting.lock();
            self.registry.with(|threads| {
                if self.buffers.is_due_to_flip(|| threads.iter().count()) {
                    self.stop(threads);
                    // SAFETY: the world is stopped. Chunks stay what they are: the epoch need not change.
                    unsafe { self.retire(threads) };
                    self.release(threads);
                }
            });
            self.safepoint.announce();
        });
    }

    /// Takes every buffer of the young generation back, which may flip them.
    ///
    /// # Safety
    /// As for [`Buffers::retire_all`].
    pub(crate) unsafe fn retire(&self, threads: &Threads) -> Retired {
        // SAFETY: the caller's promise.
        let retired =
            unsafe { self.buffers.retire_all(|each| threads.iter().for_each(|thread| each(&thread.lab)), None) };
        if retired.flipped.is_some() {
            self.flipped(threads);
        }
        retired
    }

    /// Adds a range outside of the heap whose words may be references to objects, or into them. Their objects are kept
    /// and not moved while they are there.
    ///
    /// # Safety
    /// The range is readable, aligned to 8 bytes, for as long as the heap lives.
    pub unsafe fn add_ambiguous(&self, range: Range<*const usize>) {
        self.handles.with(|tables| {
            tables.ambiguous.push([range.start.expose_provenance(), range.end.expose_provenance()]);
        });
    }

    /// Ends a thread: gives back what it has. The thread does not run any more, or is the caller.
    pub(crate) fn detach(&self, thread: &Thread) {
        // SAFETY: the owner thread, or one that does not run any more.
        unsafe {
            self.buffers.retire_own(&thread.lab);
            self.old_buffers.retire_own(&thread.old_lab);
        }
        self.flush_stores(thread);
        // Roots end before the thread is safe, and it may be stopped.
        self.forget_roots(thread);
        self.safepoint.become_safe(&thread.status);
        self.registry.leave(thread);
    }

    pub(crate) fn forget_roots(&self, thread: &Thread) {
        thread.frames.set(core::ptr::null_mut());
        // No stack, also for whoever has the record next, until it has been safe.
        thread.stack_base.set(core::ptr::null_mut());
        thread.stack_pointer.set(core::ptr::null_mut());
        // SAFETY: the owner thread, or one that does not run any more.
        unsafe { (*thread.locals.get()).clear() };
    }

    /// Takes `size` bytes, a whole number of granules, from whatever buffer the thread uses; 0 when that is exhausted.
    #[inline(always)]
    pub(crate) fn take(&self, thread: &Thread, size: usize) -> usize {
        self.take_in(self.buffers.way(), thread, size)
    }

    /// The same in a way that the buffers have or had.
    #[inline(always)]
    pub(crate) fn take_in(&self, way: Way, thread: &Thread, size: usize) -> usize {
        if way.is_by_thread() {
            return thread.take_own(size);
        }
        if way == Way::Processor {
            return thread.take_by_processor(size);
        }
        // SAFETY: the lab is the calling thread's; sizes are multiples of 16.
        unsafe { self.buffers.take_shared(&thread.lab, size) }
    }

    /// The slow path of young allocation: another buffer, perhaps after a collection.
    #[cold]
    pub(crate) fn allocate_slow(&self, thread: &Thread, bytes: usize) -> Result<usize, OutOfMemory> {
        let out = OutOfMemory { wanted: Bytes(bytes) };
        if thread.status.wants_stop() {
            self.stop_here(thread);
        }
        if bytes > LARGEST_SMALL {
            return self.allocate_large(thread, bytes, false).ok_or(out);
        }
        let size = rounded(bytes);
        self.stress(thread);
        // SAFETY: set up; the lab is the calling thread's; the size is a multiple of 16. No stop comes in there, because this
        // thread is not at a safepoint and the space does not collect.
        let at = unsafe { self.buffers.allocate_slow(&thread.lab, size) };
        if at != 0 {
            return Ok(at);
        }
        Ok(self.collect_for(thread, Want::Young(size)).ok_or(out)?.start)
    }

    /// Allocates in the old generation.
    pub(crate) fn allocate_old(&self, thread: &Thread, bytes: usize) -> Result<usize, OutOfMemory> {
        let out = OutOfMemory { wanted: Bytes(bytes) };
        if thread.status.wants_stop() {
            self.stop_here(thread);
        }
        if bytes > LARGEST_SMALL {
            return self.allocate_large(thread, bytes, true).ok_or(out);
        }
        let size = rounded(bytes);
        let mut at = self.take_old(thread, size);
        if at == 0 {
            self.stress(thread);
            // SAFETY: as in `allocate_slow`.
            at = unsafe { self.old_buffers.allocate_slow(&thread.old_lab, size) };
        }
        if at == 0 {
            at = self.collect_for(thread, Want::Old(size)).ok_or(out)?.start;
        }
        // Others may have objects in the same region.
        self.space.set_start_shared(at);
        Ok(at)
    }

    /// Takes `size` bytes, a whole number of granules, from whatever buffer in the old generation the thread uses; 0 when that
    /// is exhausted.
    fn take_old(&self, thread: &Thread, size: usize) -> usize {
        match self.old_buffers.way() {
            Way::Thread | Way::ThreadAlone => thread.take_own_old(size),
            // SAFETY: set up, with buffers for processors; sizes are multiples of 16.
            Way::Processor => unsafe { self.old_buffers.take_by_processor(size) },
            // SAFETY: the lab is the calling thread's.
            Way::Shared => unsafe { self.old_buffers.take_shared(&thread.old_lab, size) },
        }
    }

    fn allocate_large(&self, thread: &Thread, bytes: usize, old: bool) -> Option<usize> {
        if bytes > self.config.old.0 {
            return None;
        }
        self.stress(thread);
        let since = self.large_since.fetch_add(bytes, Ordering::Relaxed);
        let due = !old && since + bytes > self.config.young.0.max(bytes);
        let at = match (!due).then(|| self.obtain_large(bytes, old)).flatten() {
            Some(at) => at,
            None => self.collect_for(thread, Want::Large(bytes, old))?.start,
        };
        Counters::add(&self.counters.large_objects, 1);
        Counters::add(&self.counters.large_bytes, bytes);
        Some(at)
    }

    fn obtain_large(&self, bytes: usize, old: bool) -> Option<usize> {
        let footprint = Large::footprint(bytes);
        if !self.old.charge(footprint) {
            return None;
        }
        let at = self.large.obtain(bytes, old);
        if at.is_none() {
            self.old.refund(footprint);
        }
        at
    }

    /// Provides what an allocation lacks, if it is there: straight from the generation, before anybody else goes on.
    pub(crate) fn provide(&self, want: Want) -> Option<Range<usize>> {
        match want {
            Want::Nothing => Some(0..0),
            Want::Young(size) => {
                let object = self.young.obtain(&self.space, size, size)?;
                // At once: whoever walks over it finds objects of no size.
                self.space.fill(object.clone(), 0);
                Counters::add(&self.counters.provided, 1);
                Some(object)
            }
            Want::Old(size) => {
                let object = self.old.obtain(size, size)?;
                self.space.fill(object.clone(), 0);
                Counters::add(&self.counters.old_provided, 1);
                Some(object)
            }
            Want::Large(bytes, old) => self.obtain_large(bytes, old).map(|at| at..at + bytes),
        }
    }

    /// Collects until what is wanted is there; `None` when it is not after a full collection either.
    fn collect_for(&self, thread: &Thread, want: Want) -> Option<Range<usize>> {
        if self.config.null {
            return self.provide(want);
        }
        let kind = if matches!(want, Want::Old(..)) { Collection::Full } else { Collection::Young };
        loop {
            let epoch = self.buffers.source().epoch();
            match self.collect(thread, kind, want, Some(epoch)) {
                crate::cycle::Outcome::Done(range) => return range,
                crate::cycle::Outcome::Overtaken => {
                    if let Some(range) = self.provide(want) {
                        return Some(range);
                    }
                }
            }
        }
    }

    /// Collects at every so many-th refill.
    fn stress(&self, thread: &Thread) {
        let every = self.config.collect_every;
        if every != 0 && !self.config.null {
            let n = self.refills.fetch_add(1, Ordering::Relaxed) + 1;
            if n.is_multiple_of(every) {
                let kind = if (n / every).is_multiple_of(4) { Collection::Full } else { Collection::Young };
                let _ = self.collect(thread, kind, Want::Nothing, None);
            }
        }
    }

    /// The store buffer's slow and only path: remembers a slot.
    pub(crate) fn remember_store(&self, thread: &Thread, slot: usize) {
        // SAFETY: the owner thread, which no collector looks at while it runs.
        let stores = unsafe { &mut *thread.stores.get() };
        if thread.stored.get() == stores.len() {
            self.flush_stores(thread);
        }
        stores[thread.stored.get()] = slot;
        thread.stored.set(thread.stored.get() + 1);
    }

    /// Empties a thread's store buffer into the heap's list. The owner, or a collector in a stopped world.
    pub(crate) fn flush_stores(&self, thread: &Thread) {
        let stored = thread.stored.replace(0);
        if stored == 0 {
            return;
        }
        let _guard = self.stores_lock.lock();
        // SAFETY: the lock is held, and the buffer is the caller's (see above).
        let (list, stores) = unsafe { (&mut *self.remembered.get(), &(&*thread.stores.get())[..stored]) };
        for &slot in stores {
            // A list that is full, of slots that were stored to over and over, is helped out by cards.
            if !list.try_push(slot) {
                self.space.dirty(slot);
            }
        }
    }

    /// What follows a store of a reference into an object.
    #[inline(always)]
    pub(crate) fn after_store(&self, thread: &Thread, slot: usize, value: usize) {
        match self.config.barrier {
            Barrier::ConditionalCards => self.space.dirty(slot),
            Barrier::Cards => self.space.dirty_unconditionally(slot),
            Barrier::StoreBuffer => {
                // Old and large objects lie below the young generation, and a large one may be young.
                if slot < self.space.young.start && value >= self.space.large.start {
                    self.remember_store(thread, slot);
                }
            }
        }
    }
}
