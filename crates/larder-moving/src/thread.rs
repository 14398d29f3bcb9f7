//! What the heap knows of one thread.

use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::Ordering;

use larder_lab::{Lab, Near, Shape, bump_near};
use larder_sync::lock::Lock;
use larder_sync::safepoint::Status;
use larder_sys::memory::{self, ReserveError};
use larder_units::Bytes;

use crate::list::List;

/// Slots of a thread's store buffer.
pub(crate) const STORES: usize = 256;
/// Local roots that a thread can have at a time.
const LOCALS: usize = 1 << 20;

/// A frame of a shadow stack: slots of the program's own that are roots while the frame is linked.
///
/// The newest frame is `Thread::frames`; a function links its frame when it begins and unlinks it when it ends.
#[repr(C)]
pub struct Frame {
    /// The frame below, or null.
    pub previous: *mut Frame,
    /// How many slots there are.
    pub count: usize,
    /// The first of them.
    pub slots: *mut usize,
}

/// A thread's record. Its first words are published (see [`crate::sequence`]): a compiler may inline what reads them.
///
/// Sync: the owner thread while it is not safe; collectors while the world is stopped. `next`, `used`: the registry's lock.
#[repr(C)]
pub struct Thread {
    /// The thread's buffer: its first two words are the frontier and the limit. Never open where buffers belong to others.
    pub lab: Lab,
    /// Not 0 when the thread should call [`Mutator::poll`](crate::Mutator::poll). Sync: `safepoint.arrive`.
    pub status: Status,
    /// What a store of a reference is followed by: 0, 1, 2 as [`Barrier`](crate::Barrier) lists them.
    pub barrier: Cell<u32>,
    /// The newest frame of its shadow stack.
    pub frames: Cell<*mut Frame>,
    /// The card of a slot is the byte at this address plus the slot's address divided by 512.
    pub card_bias: Cell<usize>,
    /// The sequence of the heap's that allocates from the buffers of processors: with no indices where they have none.
    pub shape: Cell<*const Shape>,
    /// Where the thread's sequences find the buffers of processors; closed ones where those have none. Sync: set while the thread
    /// stands still, or does not run yet.
    pub near: Near,
    /// The heap that it is attached to. Sync: set when it attaches.
    pub(crate) heap: Cell<*const ()>,
    pub(crate) locals: UnsafeCell<List<usize>>,
    /// Its buffer in the old generation, where those belong to threads.
    pub(crate) old_lab: Lab,
    pub(crate) stores: UnsafeCell<[usize; STORES]>,
    pub(crate) stored: Cell<usize>,
    /// Where its stack begins (the highest address), and how far it reached when the thread became safe. Null while the thread attaches
    /// or detaches: it is safe then, and has no roots.
    pub(crate) stack_base: Cell<*mut u8>,
    pub(crate) stack_pointer: Cell<*mut u8>,
    /// Its thread pointer, if the kernel restarts its sequences; else null.
    pub(crate) thread_pointer: Cell<*mut u8>,
    next: Cell<*mut Thread>,
    used: Cell<bool>,
}

impl Thread {
    /// Takes `size` bytes from the thread's own buffer; 0 when that is exhausted, or closed because buffers belong to others.
    #[inline(always)]
    pub(crate) fn take_own(&self, size: usize) -> usize {
        take(&self.lab, size)
    }

    /// The same from the buffer of the processor that it runs on.
    #[inline(always)]
    pub(crate) fn take_by_processor(&self, size: usize) -> usize {
        // SAFETY: the record's thread is the caller, and `Buffers::aim` has aimed it.
        unsafe { bump_near(&self.near, size) }
    }

    /// The same from its buffer in the old generation.
    pub(crate) fn take_own_old(&self, size: usize) -> usize {
        take(&self.old_lab, size)
    }
}

/// Takes `size` bytes from a buffer of the calling thread's own.
#[inline(always)]
fn take(lab: &Lab, size: usize) -> usize {
    // Plain loads and a plain store: no handler of a signal allocates, and nobody is stopped here.
    let at = lab.slot.frontier.load(Ordering::Relaxed);
    if at + size > lab.slot.limit.load(Ordering::Relaxed) {
        return 0;
    }
    lab.slot.frontier.store(at + size, Ordering::Relaxed);
    at
}

/// All threads of a heap.
pub(crate) struct Registry {
    lock: Lock,
    /// Sync: `lock`.
    inner: UnsafeCell<Inner>,
}

struct Inner {
    /// The newest group; the one to make records in.
    group: *mut Group,
    first: *mut Thread,
}

/// Records that were mapped together: alone, each would take a whole page.
struct Group {
    /// The group that was mapped before, or null.
    before: *mut Group,
    /// How many of its records were made.
    made: usize,
    records: [MaybeUninit<Thread>; IN_GROUP],
}

/// Records of a group, of which those that are not made cost no memory.
const IN_GROUP: usize = 24;

impl Group {
    const BYTES: Bytes = Bytes(size_of::<Self>()).to_pages_rounded_up().to_bytes();
}

impl Inner {
    /// Room for one more record, in a group of its own if the others are full.
    fn room(&mut self) -> Result<*mut Thread, ReserveError> {
        // SAFETY: null, or a group, which lives as long as the registry. By its address, here and below: threads use its records.
        if self.group.is_null() || unsafe { (*self.group).made } == IN_GROUP {
            let fresh = memory::map_lazy(Group::BYTES)?.as_ptr().cast::<Group>();
            // SAFETY: a fresh mapping, page-aligned and long enough; its zeroes are no records, and none made.
            unsafe { (*fresh).before = self.group };
            self.group = fresh;
        }
        // SAFETY: as above; there is room in it.
        unsafe {
            let made = (*self.group).made;
            (*self.group).made = made + 1;
            Ok((&raw mut (*self.group).records).cast::<Thread>().add(made))
        }
    }
}

// SAFETY: `inner` is used under `lock`; the records as they say.
unsafe impl Sync for Registry {}
// SAFETY: as above.
unsafe impl Send for Registry {}

impl Registry {
    pub const fn new() -> Self {
        let inner = Inner { group: ptr::null_mut(), first: ptr::null_mut() };
        Self { lock: Lock::new(), inner: UnsafeCell::new(inner) }
    }

    /// Calls `f` with every attached thread, in the order of their records; nobody joins or leaves meanwhile.
    pub fn with<R>(&self, f: impl FnOnce(&Threads) -> R) -> R {
        let _guard = self.lock.lock();
        // SAFETY: the lock is held.
        let inner = unsafe { &*self.inner.get() };
        f(&Threads { first: inner.first })
    }

    /// A record for the calling thread, safe and with an empty buffer.
    pub fn join(&self) -> Result<&Thread, ReserveError> {
        let _guard = self.lock.lock();
        // SAFETY: the lock is held.
        let inner = unsafe { &mut *self.inner.get() };
        let mut at = inner.first;
        // SAFETY: records live as long as the registry, and `used` and `next` are under its lock.
        while let Some(thread) = unsafe { at.as_ref() } {
            if !thread.used.get() {
                thread.used.set(true);
                return Ok(thread);
            }
            at = thread.next.get();
        }
        let locals = List::with_capacity(LOCALS)?;
        let record = inner.room()?;
        let thread = Thread {
            lab: Lab::new(),
            status: Status::new_safe(),
            barrier: Cell::new(0),
            frames: Cell::new(ptr::null_mut()),
            card_bias: Cell::new(0),
            shape: Cell::new(ptr::null()),
            near: Near::closed(),
            heap: Cell::new(ptr::null()),
            locals: UnsafeCell::new(locals),
            old_lab: Lab::new(),
            stores: UnsafeCell::new([0; STORES]),
            stored: Cell::new(0),
            stack_base: Cell::new(ptr::null_mut()),
            stack_pointer: Cell::new(ptr::null_mut()),
            thread_pointer: Cell::new(ptr::null_mut()),
            next: Cell::new(inner.first),
            used: Cell::new(true),
        };
        // SAFETY: room for a record, and nobody else's.
        unsafe { record.write(thread) };
        inner.first = record;
        // SAFETY: as above.
        Ok(unsafe { &*record })
    }

    /// Takes a record back: its thread is safe, and has given back what it had.
    pub fn leave(&self, thread: &Thread) {
        let _guard = self.lock.lock();
        thread.used.set(false);
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let Inner { mut group, first: mut at } = *self.inner.get_mut();
        while !at.is_null() {
            // SAFETY: every record was written by `join`, and is dropped once.
            unsafe {
                let next = (*at).next.get();
                ptr::drop_in_place(at);
                at = next;
            }
        }
        while !group.is_null() {
            // SAFETY: mapped by `room`; nobody refers to its records any more.
            unsafe {
                let before = (*group).before;
                memory::unmap(group.cast(), Group::BYTES);
                group = before;
            }
        }
    }
}

/// The threads of a registry whose lock is held.
pub(crate) struct Threads {
    first: *mut Thread,
}

impl Threads {
    /// Takes the record of a thread back that does not exist any more, and has given back what it had.
    pub fn free(&self, thread: &Thread) {
        thread.used.set(false);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Thread> {
        let mut at = self.first;
        core::iter::from_fn(move || {
            // SAFETY: records live as long as the registry.
            while let Some(thread) = unsafe { at.as_ref() } {
                at = thread.next.get();
                if thread.used.get() {
                    return Some(thread);
                }
            }
            None
        })
    }
}
