//! The objects behind the mutexes: which lock they are, where they lie, and what becomes of them in a fork child.

use core::ffi::CStr;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use larder_sync::fair::{RawFairMutex, RawFifoLock, RawMcsLock};
use larder_sync::lock::Lock;
use larder_sync::mutex::RawMutex;
use larder_sync::reciprocating::RawReciprocatingMutex;
use larder_sync::restrict::ConcurrencyRestricted;
use larder_sys::arena::Arena;
use larder_sys::{env, thread};

/// Room for any of the locks.
const ROOM: usize = 128;

/// What stands behind a mutex.
#[repr(C, align(128))]
pub struct Object {
    raw: [u64; ROOM / 8],
    /// The thread pointer of the owner, 0 if nobody is. Written by the owner; others compare it with their own.
    /// Sync: Relaxed; only its own thread ever finds its own.
    pub owner: AtomicUsize,
    /// How often its owner has it beyond the first time, for recursive mutexes. Sync: the lock.
    pub again: AtomicU32,
    /// The [`GENERATION`] in which the lock was made. Sync: `objects.fork`.
    generation: AtomicU32,
    /// How often it was taken. Sync: the lock.
    taken: AtomicU64,
    /// How often a thread found it held. Sync: a count, Relaxed.
    waited: AtomicU64,
    /// The next in the list of all. Sync: `STORE`, then never written.
    next: *mut Object,
    /// The next in the list of free ones. Sync: `STORE`.
    next_free: *mut Object,
}

/// A lock of `larder-sync`, by its functions.
pub struct Kind {
    name: &'static CStr,
    make: unsafe fn(*mut u8),
    lock: unsafe fn(*const u8),
    try_lock: unsafe fn(*const u8) -> bool,
    unlock: unsafe fn(*const u8),
}

const fn kind<L: lock_api::RawMutex>(name: &'static CStr) -> Kind {
    const { assert!(size_of::<L>() <= ROOM && align_of::<L>() <= 128) };
    Kind {
        name,
        // SAFETY: the caller hands an object's room, which nobody uses.
        make: |room| unsafe { room.cast::<L>().write(L::INIT) },
        // SAFETY: the caller hands a room in which `make` has made an `L`.
        lock: |room| unsafe { (*room.cast::<L>()).lock() },
        // SAFETY: as above.
        try_lock: |room| unsafe { (*room.cast::<L>()).try_lock() },
        // SAFETY: as above; and the lock is held.
        unlock: |room| unsafe { (*room.cast::<L>()).unlock() },
    }
}

/// The runtime's lock of four bytes, through the same interface.
struct FourBytes(Lock);

// SAFETY: `Lock` excludes, and stays with the thread that took it.
unsafe impl lock_api::RawMutex for FourBytes {
    #[allow(clippy::declare_interior_mutable_const, reason = "the interface asks for it")]
    const INIT: Self = Self(Lock::new());
    type GuardMarker = lock_api::GuardNoSend;
    fn lock(&self) {
        self.0.lock_raw();
    }
    fn try_lock(&self) -> bool {
        self.0.try_lock_raw()
    }
    unsafe fn unlock(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.unlock_raw() };
    }
}

static KINDS: [Kind; 7] = [
    kind::<RawMutex>(c"mutex"),
    kind::<RawFairMutex>(c"fair"),
    kind::<RawFifoLock>(c"fifo"),
    kind::<RawMcsLock>(c"mcs"),
    kind::<ConcurrencyRestricted<RawMcsLock>>(c"restricted-mcs"),
    kind::<RawReciprocatingMutex>(c"reciprocating"),
    kind::<FourBytes>(c"lock"),
];

/// The lock that was chosen; null before. Sync: every thread chooses the same; Relaxed.
static CHOSEN: AtomicPtr<Kind> = AtomicPtr::new(ptr::null_mut());

/// Forks before this process. Sync: `objects.fork`; written while the process has one thread.
static GENERATION: AtomicU32 = AtomicU32::new(0);

struct Store {
    arena: Arena,
    all: *mut Object,
    free: *mut Object,
}
// SAFETY: objects may be made and freed by any thread.
unsafe impl Send for Store {}

static STORE: lock_api::Mutex<FourBytes, Store> = lock_api::Mutex::from_raw(
    FourBytes(Lock::new()),
    Store { arena: Arena::new(), all: ptr::null_mut(), free: ptr::null_mut() },
);

/// The lock that `LARDER_LOCK` names.
pub fn choose() -> &'static Kind {
    // ORDER objects.chosen: Relaxed; the kinds are constants.
    let chosen = CHOSEN.load(Ordering::Relaxed);
    // SAFETY: null, or one of `KINDS`.
    if let Some(chosen) = unsafe { chosen.as_ref() } {
        return chosen;
    }
    let wanted = env::var(c"LARDER_LOCK").unwrap_or(c"mutex");
    let Some(kind) = KINDS.iter().find(|kind| kind.name == wanted) else {
        larder_sys::say!(
            "LARDER_LOCK is \"{}\", which is no lock: set it to mutex, fair, fifo, mcs, restricted-mcs, reciprocating or lock",
            wanted.to_str().unwrap_or("?")
        );
        // SAFETY: ends the process without running what other libraries have registered.
        unsafe { libc::_exit(125) };
    };
    // ORDER objects.chosen: Relaxed, as above.
    CHOSEN.store(ptr::from_ref(kind).cast_mut(), Ordering::Relaxed);
    kind
}

/// In which process of a family of forks this is.
pub fn generation() -> u32 {
    // ORDER objects.fork: Relaxed; written while the process has one thread.
    GENERATION.load(Ordering::Relaxed)
}

/// The calling thread, as owners are named.
pub fn me() -> usize {
    thread::thread_pointer().addr()
}

impl Object {
    /// A free lock, or nothing where the kernel gives no memory.
    pub fn make() -> Option<NonNull<Object>> {
        let mut store = STORE.lock();
        let object = match NonNull::new(store.free) {
            Some(object) => {
                // SAFETY: in the list of free ones, so it is whole and nobody's.
                store.free = unsafe { object.as_ref() }.next_free;
                object
            }
            None => {
                let object = store.arena.allocate_one::<Object>().ok()?;
                // SAFETY: zeroed, which is a whole object, and not known to anybody yet.
                unsafe { (*object.as_ptr()).next = store.all };
                store.all = object.as_ptr();
                object
            }
        };
        // SAFETY: nobody else knows it; its room is large enough for every kind.
        unsafe {
            (choose().make)((&raw mut (*object.as_ptr()).raw).cast());
            let this = object.as_ref();
            // ORDER objects.fork: Relaxed, all; whoever publishes the object publishes them.
            this.owner.store(0, Ordering::Relaxed);
            this.again.store(0, Ordering::Relaxed);
            this.generation.store(GENERATION.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Some(object)
    }

    /// Gives it back.
    ///
    /// # Safety
    /// Nobody holds it, waits for it, or uses it again.
    pub unsafe fn free(object: NonNull<Object>) {
        let mut store = STORE.lock();
        // SAFETY: the caller's promise.
        unsafe { (*object.as_ptr()).next_free = store.free };
        store.free = object.as_ptr();
    }

    fn room(&self) -> *const u8 {
        (&raw const self.raw).cast()
    }

    /// In a fork child: makes the lock anew if it was made before the fork, held if it was held.
    fn renew(&self) {
        // ORDER objects.fork: Acquire, with the store below: the lock has been made.
        if self.generation.load(Ordering::Acquire) == GENERATION.load(Ordering::Relaxed) {
            return;
        }
        let store = STORE.lock();
        // ORDER objects.fork: Relaxed; the lock of the store orders it.
        let now = GENERATION.load(Ordering::Relaxed);
        if self.generation.load(Ordering::Relaxed) != now {
            // SAFETY: made before the fork, so no thread of this process has used it yet: each comes here first.
            unsafe {
                (choose().make)(self.room().cast_mut());
                if self.owner.load(Ordering::Relaxed) != 0 {
                    (choose().lock)(self.room());
                }
            }
            // ORDER objects.fork: Release, with the load above.
            self.generation.store(now, Ordering::Release);
        }
        drop(store);
    }

    /// Takes the lock.
    pub fn lock(&self) {
        if self.try_lock() {
            return;
        }
        // ORDER objects.count: Relaxed; a count.
        self.waited.fetch_add(1, Ordering::Relaxed);
        // SAFETY: an object that was made.
        unsafe { (choose().lock)(self.room()) };
        self.took();
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> bool {
        self.renew();
        // SAFETY: an object that was made.
        let taken = unsafe { (choose().try_lock)(self.room()) };
        if taken {
            self.took();
        }
        taken
    }

    fn took(&self) {
        // ORDER objects.owner: Relaxed, all; the lock is held.
        self.owner.store(me(), Ordering::Relaxed);
        self.taken.store(self.taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// It is held on the caller's behalf.
    pub unsafe fn unlock(&self) {
        self.renew();
        // ORDER objects.owner: Relaxed; the lock is held.
        self.owner.store(0, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { (choose().unlock)(self.room()) };
    }
}

/// The child of a fork has one thread, and no waiter that its parent had.
pub extern "C" fn after_fork_in_child() {
    // SAFETY: the only thread; what the store guards is at worst an object that was about to be handed out.
    unsafe { STORE.raw().0.reset_after_fork() };
    // ORDER objects.fork: Relaxed; the only thread.
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Where the summary goes: a copy of standard error, which some programs close before they end. Negative: no summary.
/// Sync: written while the library is loaded.
static SUMMARY: AtomicI32 = AtomicI32::new(-1);

/// Keeps standard error for the summary, if one was asked for.
pub fn prepare_summary() {
    if env::is_set(c"LARDER_LOCK_SUMMARY") {
        // A number that programs do not count on.
        // SAFETY: takes no memory.
        let copy = unsafe { libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 200) };
        // ORDER objects.summary: Relaxed; the number is the whole message.
        SUMMARY.store(copy, Ordering::Relaxed);
    }
}

/// Says how many mutexes there were, if that was asked for.
pub extern "C" fn at_exit() {
    // ORDER objects.summary: Relaxed, as above.
    let to = SUMMARY.load(Ordering::Relaxed);
    if to < 0 {
        return;
    }
    let store = STORE.lock();
    let (mut mutexes, mut taken, mut waited) = (0, 0, 0);
    let mut object = store.all;
    // SAFETY: objects stay until the process ends.
    while let Some(this) = unsafe { object.as_ref() } {
        mutexes += 1;
        // ORDER objects.count: Relaxed; other threads may still run, and the counts are those of a moment.
        taken += this.taken.load(Ordering::Relaxed);
        waited += this.waited.load(Ordering::Relaxed);
        object = this.next;
    }
    if mutexes == 0 {
        // Not a word about programs that this one has started and that have none.
        return;
    }
    let name = choose().name.to_str().unwrap_or("?");
    // The process ends, and no lock of ours is held that its malloc may want.
    drop(store);
    let line = format!(
        "larder: {name}: {mutexes} mutexes at most at a time, taken {taken} times, {waited} times found held\n"
    );
    larder_sys::report::write_all(to, line.as_bytes());
}
