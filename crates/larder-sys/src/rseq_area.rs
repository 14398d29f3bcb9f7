//! The restartable-sequence area that glibc registers for each thread.
//!
//! glibc owns it: it is never registered a second time (but for threads that glibc does not know: [`register_here`]), and only `rseq_cs` is ever written (and that only by the
//! sequences of `larder-percpu`). Here is only where it lies and what the kernel keeps up to date in it.

use core::sync::atomic::{AtomicIsize, Ordering};

use crate::thread::thread_pointer;

/// Offset of `cpu_id` in the area.
pub const CPU_ID: isize = 4;
/// Offset of `rseq_cs` in the area.
pub const RSEQ_CS: isize = 8;
/// Offset of `mm_cid` in the area.
pub const MM_CID: isize = 24;

/// The auxiliary-vector entry that says how much of the area the kernel fills.
const AT_RSEQ_FEATURE_SIZE: u64 = 27;

/// Where the area lies from the thread pointer. Sync: [`find`] writes what is the same in every thread, before there are others.
static OFFSET: AtomicIsize = AtomicIsize::new(0);

/// Why there may be no area.
pub const REASONS: [&str; 3] = [
    "the C library does not register restartable sequences (glibc 2.35 or later does)",
    "restartable sequences are turned off (kernel, glibc.pthread.rseq=0, or a sandbox)",
    "the kernel refused to register restartable sequences",
];

/// Which per-CPU index the kernel keeps in the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Concurrency ids: dense in 0..min(threads, CPUs). Kernel 6.3 and later.
    MmCid,
    /// CPU numbers.
    CpuId,
}

/// A usable area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Offset of the area from the thread pointer, the same in every thread.
    pub offset: isize,
    /// The best index that this kernel offers.
    pub index: Index,
}

impl Area {
    /// Offset of the index word from the thread pointer.
    pub const fn index_offset(self) -> isize {
        self.offset
            + match self.index {
                Index::MmCid => MM_CID,
                Index::CpuId => CPU_ID,
            }
    }
}

/// Whether sequences run in the calling thread: false in a child of vfork, which shares its parent's area without a
/// registration of its own, and in a thread that glibc does not know.
///
/// A system call: for tests, and for those who must know at a point where they can afford it.
pub fn is_registered_here() -> bool {
    const UNREGISTER: i32 = 1;
    let Ok(area) = find() else { return false };
    let at = thread_pointer().wrapping_offset(area.offset);
    // Unregistering with a wrong signature fails in every case: EPERM if this area is registered, otherwise EINVAL. The
    // registered length is 32 or, for newer areas, what the kernel's features need.
    // SAFETY: asks for the auxiliary vector only.
    let features = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) } as u32;
    [32, features.next_multiple_of(32).max(32)].into_iter().any(|length| {
        let _keep = crate::memory::KeepErrno::new();
        // SAFETY: the call changes nothing, because the signature is not the registered one.
        let r = unsafe { libc::syscall(libc::SYS_rseq, at, length, UNREGISTER, 0) };
        r != 0 && crate::memory::errno() == libc::EPERM
    })
}

/// Registers the calling thread's area, where that was not done: a thread made by the `clone` system call gets its
/// thread-local storage from the loader, area included, but nobody tells the kernel. False when the kernel refuses.
///
/// One system call. [`find`] has found an area in some thread.
pub fn register_here() -> bool {
    /// What glibc registers with on x86-64.
    const SIGNATURE: u32 = 0x5305_3053;
    const LENGTH: usize = 32;
    let _keep = crate::memory::KeepErrno::new();
    let at = thread_pointer().wrapping_offset(OFFSET.load(Ordering::Relaxed));
    // SAFETY: the area is the calling thread's, which keeps it until it ends.
    let r = unsafe { libc::syscall(libc::SYS_rseq, at, LENGTH, 0, SIGNATURE) };
    // EBUSY: it is registered, by the C library. EINVAL: also, but with another length, which the C library chose; that of
    // a thread that it does not know is never another.
    r == 0 || matches!(crate::memory::errno(), libc::EBUSY | libc::EINVAL)
}

/// Finds the area, or says why there is none.
///
/// Looks symbols up (`dlsym`), so it is for initialisation only.
pub fn find() -> Result<Area, &'static str> {
    // SAFETY: the symbols, where they exist, are glibc's `const ptrdiff_t` and `const unsigned`; cpu_id of the
    // calling thread is inside the area when the size says so.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
        if offset.is_null() || size.is_null() {
            return Err(REASONS[0]);
        }
        if *size == 0 {
            return Err(REASONS[1]);
        }
        let area = *offset;
        OFFSET.store(area, Ordering::Relaxed);
        if thread_pointer().offset(area + CPU_ID).cast::<i32>().read_volatile() < 0 {
            return Err(REASONS[2]);
        }
        let index = if libc::getauxval(AT_RSEQ_FEATURE_SIZE) >= 28 { Index::MmCid } else { Index::CpuId };
        Ok(Area { offset: area, index })
    }
}
