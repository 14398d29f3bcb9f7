//! The list of threads.

use core::cell::UnsafeCell;
use core::ptr;

use larder_sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use larder_sync::lock::Lock;
use larder_sync::{const_unless_loom, process_static};
use larder_sys::memory::{self, ReserveError};
use larder_sys::thread;
use larder_units::Bytes;

use crate::defer::{self, Deferral};
use crate::ground::{Arena, signal, tid, tls};
use crate::record::{Thread, ThreadState};
use crate::{look, stop, suspend};

process_static! {
    /// The one registry of the process.
    pub static REGISTRY: Registry = Registry::new();
}

/// The threads of the process that use the heap.
pub struct Registry {
    /// Guards the list, the arena, and stopping. Rank: after the collection lock, before the locks of the heap.
    lock: Lock,
    /// First record. Sync: `lock`.
    first: AtomicPtr<Thread>,
    /// Records for reuse. Sync: `lock`.
    free: AtomicPtr<Thread>,
    /// Where records come from. Sync: `lock`.
    arena: UnsafeCell<Arena>,
    /// Records that were ever made. Sync: `lock`.
    records: AtomicU32,
    /// Registered threads that can run. Sync: written under `lock`, read by anyone as a statistic.
    count: AtomicU32,
    /// Threads that were ever registered. Sync: as `count`.
    total: AtomicUsize,
    /// Rounds of looks ([`crate::look`]). Sync: a ticket.
    pub(crate) looks: AtomicU32,
    /// Threads that others have suspended ([`crate::suspend`]). Sync: written under `lock`; who reads it holds a lock that suspenders take before.
    pub(crate) suspended: AtomicU32,
    /// Bytes of buffers that each thread gets for its own; 0 where buffers belong to CPUs. Sync: set at initialisation.
    buffer_bytes: AtomicUsize,
}

// SAFETY: the arena is only used under `lock`; everything else is atomic.
unsafe impl Sync for Registry {}

/// The registry, locked. The holder defers stops: nobody else can stop the world meanwhile, and a signal handler on this
/// thread must not try to.
pub struct RegistryGuard<'a> {
    registry: &'a Registry,
    /// Dropped after the lock was given back.
    _deferral: Option<Deferral>,
}

impl Drop for RegistryGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: the guard was made by locking.
        unsafe { self.registry.lock.unlock_raw() };
    }
}

impl RegistryGuard<'_> {
    /// Calls `f` for every record of the list, whatever its state.
    pub fn for_each(&self, mut f: impl FnMut(&'static Thread)) {
        let mut at = self.registry.first.load(Ordering::Relaxed);
        // SAFETY: records are never unmapped, and the list does not change under the lock.
        while let Some(thread) = unsafe { at.as_ref() } {
            at = thread.next.load(Ordering::Relaxed);
            f(thread);
        }
    }

    /// The record of a thread that is not registered any more, and that somebody may join by this handle.
    fn finished(&self, handle: usize) -> Option<&'static Thread> {
        let mut found = None;
        self.for_each(|t| {
            if t.pthread.load(Ordering::Relaxed) == handle && t.state() == ThreadState::Finished {
                found = Some(t);
            }
        });
        found
    }

    fn new_record(&self) -> Result<&'static Thread, ReserveError> {
        let registry = self.registry;
        let mut at = registry.free.load(Ordering::Relaxed);
        // SAFETY: free records are valid; the arena is ours under the lock, and zeroes are a valid record.
        let record = unsafe {
            match at.as_ref() {
                Some(free) => registry.free.store(free.next.load(Ordering::Relaxed), Ordering::Relaxed),
                None => {
                    at = (*registry.arena.get()).allocate_one::<Thread>()?.as_ptr();
                    (*at).number.store(registry.records.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
                }
            }
            &*at
        };
        let bytes = registry.buffer_bytes.load(Ordering::Relaxed);
        if bytes > 0 && record.buffers().is_null() {
            record.buffers.store(memory::map_lazy(Bytes(bytes))?.as_ptr(), Ordering::Relaxed);
        }
        for word in [
            &record.pthread,
            &record.stack_base,
            &record.stack_pointer,
            &record.thread_pointer,
            &record.start,
            &record.argument,
            &record.result,
            &record.alternate[0],
            &record.alternate[1],
            &record.stopped_on[0],
            &record.stopped_on[1],
            &record.handler_stack[0],
            &record.handler_stack[1],
        ] {
            word.store(0, Ordering::Relaxed);
        }
        record.tid.store(0, Ordering::Relaxed);
        record.detached.store(0, Ordering::Relaxed);
        record.signalled.store(0, Ordering::Relaxed);
        record.signals.forget();
        record.answered.store(0, Ordering::Relaxed);
        // Not 0 where the record's last thread was parked when another forked.
        record.parked.store(0, Ordering::Relaxed);
        record.announced.store(0, Ordering::Relaxed);
        record.lent.store(0, Ordering::Relaxed);
        record.is_disarmed.store(0, Ordering::Relaxed);
        look::forget(record);
        record.looked.store(0, Ordering::Relaxed);
        record.tried.store(0, Ordering::Relaxed);
        record.set_state(ThreadState::Starting);
        record.next.store(registry.first.load(Ordering::Relaxed), Ordering::Relaxed);
        registry.first.store(at, Ordering::Relaxed);
        Ok(record)
    }

    fn recycle(&self, thread: &'static Thread) {
        let registry = self.registry;
        let this = ptr::from_ref(thread).cast_mut();
        let mut link = &registry.first;
        loop {
            let at = link.load(Ordering::Relaxed);
            if at.is_null() {
                return;
            }
            if at == this {
                break;
            }
            // SAFETY: the list holds valid records.
            link = unsafe { &(*at).next };
        }
        link.store(thread.next.load(Ordering::Relaxed), Ordering::Relaxed);
        thread.set_state(ThreadState::Free);
        suspend::forget(thread);
        let buffers = thread.buffers();
        if !buffers.is_null() {
            // A thread that ends closes its buffers itself, but one that a fork left behind did not: the next owner of the
            // slab must not hand out what a cycle has freed meanwhile.
            // SAFETY: the slab belongs to the record, and no thread uses it any more.
            unsafe { ptr::write_bytes(buffers, 0, registry.buffer_bytes.load(Ordering::Relaxed)) };
        }
        thread.result.store(0, Ordering::Relaxed);
        thread.argument.store(0, Ordering::Relaxed);
        thread.next.store(registry.free.load(Ordering::Relaxed), Ordering::Relaxed);
        registry.free.store(this, Ordering::Relaxed);
    }

    fn begin(&self, thread: &'static Thread, stack_base: usize) {
        thread.stack_base.store(stack_base, Ordering::Relaxed);
        thread.thread_pointer.store(thread::thread_pointer().expose_provenance(), Ordering::Relaxed);
        thread.tid.store(tid(), Ordering::Relaxed);
        // SAFETY: no preconditions.
        thread.pthread.store(unsafe { libc::pthread_self() } as usize, Ordering::Relaxed);
        tls::with(|t| {
            t.record.set(ptr::from_ref(thread).cast_mut().cast());
            t.buffers.set(thread.buffers());
            t.tid.set(thread.tid());
        });
        thread.set_state(ThreadState::Running);
        self.registry.count.fetch_add(1, Ordering::Relaxed);
        self.registry.total.fetch_add(1, Ordering::Relaxed);
    }
}

impl Registry {
    const_unless_loom! {
    fn new() -> Self {
        Self {
            lock: Lock::new(),
            first: AtomicPtr::new(ptr::null_mut()),
            free: AtomicPtr::new(ptr::null_mut()),
            arena: UnsafeCell::new(Arena::new()),
            records: AtomicU32::new(0),
            count: AtomicU32::new(0),
            total: AtomicUsize::new(0),
            looks: AtomicU32::new(0),
            suspended: AtomicU32::new(0),
            buffer_bytes: AtomicUsize::new(0),
        }
    }
    }

    /// Locks the registry: no thread registers, ends, or is stopped meanwhile.
    pub fn lock(&self) -> RegistryGuard<'_> {
        let deferral = defer::lock(&self.lock);
        RegistryGuard { registry: self, _deferral: Some(deferral) }
    }

    /// Locks the registry for the collector, which blocks signals.
    pub fn lock_to_stop(&self) -> RegistryGuard<'_> {
        self.lock.lock_raw();
        RegistryGuard { registry: self, _deferral: None }
    }

    /// Wakes another one of those who wait for the lock: see [`suspend::wake_others`].
    pub(crate) fn wake_another(&self) {
        self.lock.wake_another();
    }

    /// Calls `f` for every record of the list without taking the lock.
    ///
    /// # Safety
    /// The calling thread holds the lock (the collector, during a stop).
    pub unsafe fn for_each_while_locked(&self, f: impl FnMut(&'static Thread)) {
        let guard = core::mem::ManuallyDrop::new(RegistryGuard { registry: self, _deferral: None });
        guard.for_each(f);
    }

    /// Registered threads that can run.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Threads that were ever registered.
    pub fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// Gives every thread that registers from now on a slab of its own.
    pub fn give_buffers(&self, bytes: Bytes) {
        self.buffer_bytes.store(bytes.0, Ordering::Relaxed);
    }

    /// The calling thread's record.
    pub fn current(&self) -> Option<&'static Thread> {
        let record = tls::with(|t| t.record.get()).cast::<Thread>();
        // SAFETY: a thread's record outlives its registration.
        (!record.is_null()).then(|| unsafe { &*record })
    }

    /// Registers the calling thread, whose stack begins at `stack_base`. `Ok(false)` when it was registered already. One that somebody will join, and that
    /// was registered before, gets its record back: there its result is looked for.
    pub fn register_current(&self, stack_base: usize) -> Result<bool, ReserveError> {
        if self.current().is_some() {
            return Ok(false);
        }
        let guard = self.lock();
        // Most come for the first time, and are not looked for.
        let was_here = tls::with(|t| t.tid.get()) != 0;
        // SAFETY: no preconditions.
        let own = was_here.then(|| unsafe { libc::pthread_self() } as usize);
        let record = match own.and_then(|own| guard.finished(own)) {
            Some(record) => {
                record.result.store(0, Ordering::Relaxed);
                record
            }
            None => guard.new_record()?,
        };
        guard.begin(record, stack_base);
        drop(guard);
        // A client may have started the thread with everything blocked.
        signal::unblock(stop::signal());
        Ok(true)
    }

    /// Takes the calling thread out of the registry. Where somebody will join it, its result stays a root until then.
    pub fn unregister_current(&self, result: usize) -> bool {
        let Some(record) = self.current() else { return false };
        let guard = self.lock();
        tls::with(|t| {
            t.record.set(ptr::null_mut());
            t.buffers.set(ptr::null_mut());
        });
        self.count.fetch_sub(1, Ordering::Relaxed);
        // In a blocking region, whose end it does not come to as a registered thread, it may have been asked.
        suspend::forget(record);
        // Its thread-local storage is about to go.
        record.thread_pointer.store(0, Ordering::Relaxed);
        if record.start.load(Ordering::Relaxed) != 0 && record.detached.load(Ordering::Relaxed) == 0 {
            record.result.store(result, Ordering::Relaxed);
            record.argument.store(0, Ordering::Relaxed);
            record.set_state(ThreadState::Finished);
        } else {
            guard.recycle(record);
        }
        true
    }

    /// A record for a thread that is about to be created: keeps its argument alive until it runs.
    pub fn prepare(&self, start: usize, argument: usize, detached: bool) -> Result<&'static Thread, ReserveError> {
        let guard = self.lock();
        let record = guard.new_record()?;
        record.start.store(start, Ordering::Relaxed);
        record.argument.store(argument, Ordering::Relaxed);
        record.detached.store(u32::from(detached), Ordering::Relaxed);
        Ok(record)
    }

    /// Takes back a prepared record whose thread could not be created.
    pub fn abandon(&self, record: &'static Thread) {
        self.lock().recycle(record);
    }

    /// Begins the prepared thread: to be called by it, first. Returns its start routine and argument.
    pub fn begin_current(&self, record: &'static Thread, stack_base: usize) -> (usize, usize) {
        self.lock().begin(record, stack_base);
        (record.start.load(Ordering::Relaxed), record.argument.load(Ordering::Relaxed))
    }

    /// Keeps what the calling thread will return, until it is joined.
    pub fn note_result(&self, record: &'static Thread, result: usize) {
        record.result.store(result, Ordering::Relaxed);
    }

    /// Ends a stop whose guard was forgotten on purpose.
    ///
    /// # Safety
    /// The calling thread holds the lock and has stopped the world.
    pub unsafe fn resume_and_unlock(&self) {
        let guard = RegistryGuard { registry: self, _deferral: None };
        guard.resume_world();
        drop(guard);
        stop::wake_resumed(1);
    }

    /// Notes the `pthread_t` of a thread that was just created, for those who join it before it runs.
    pub fn note_handle(&self, record: &'static Thread, handle: usize) {
        let _guard = self.lock();
        if record.pthread.load(Ordering::Relaxed) == 0 {
            record.pthread.store(handle, Ordering::Relaxed);
        }
    }

    /// A thread was joined: its result is the joiner's now.
    pub fn joined(&self, handle: usize) {
        let guard = self.lock();
        if let Some(record) = guard.finished(handle) {
            guard.recycle(record);
        }
    }

    /// Nobody will join this thread.
    pub fn detached(&self, handle: usize) {
        let guard = self.lock();
        let mut finished = None;
        guard.for_each(|t| {
            if t.pthread.load(Ordering::Relaxed) == handle {
                t.detached.store(1, Ordering::Relaxed);
                if t.state() == ThreadState::Finished {
                    finished = Some(t);
                }
            }
        });
        if let Some(record) = finished {
            guard.recycle(record);
        }
    }

    /// Before fork: nobody else holds the registry while the address space is copied.
    pub fn before_fork(&self) {
        self.lock.lock_raw();
    }

    /// After fork, in the parent.
    ///
    /// # Safety
    /// The calling thread called `before_fork`.
    pub unsafe fn after_fork_in_parent(&self) {
        // SAFETY: the caller holds it.
        unsafe { self.lock.unlock_raw() };
    }

    /// After fork, in the child: only the calling thread is left.
    ///
    /// # Safety
    /// The calling thread called `before_fork` and is the only one of the child.
    pub unsafe fn after_fork_in_child(&self) {
        // SAFETY: we are alone.
        unsafe {
            stop::reset_after_fork();
            self.lock.reset_after_fork();
        }
        let own = self.current();
        let guard = self.lock();
        loop {
            let mut other = None;
            guard.for_each(|t| {
                if own.is_none_or(|o| !ptr::eq(o, t)) {
                    other = Some(t);
                }
            });
            match other {
                Some(t) => guard.recycle(t),
                None => break,
            }
        }
        self.count.store(u32::from(own.is_some()), Ordering::Relaxed);
        if let Some(own) = own {
            suspend::forget(own);
            look::forget(own);
            own.lent.store(0, Ordering::Relaxed);
            own.tid.store(tid(), Ordering::Relaxed);
            tls::with(|t| t.tid.set(own.tid()));
        }
    }
}
