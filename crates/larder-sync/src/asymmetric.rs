//! A fence in two halves, of which the frequent one is free.
//!
//! Two threads that each write their own word and then read the other's (Dekker's pattern) need a full fence between
//! the write and the read on both sides. Where one side runs often and the other seldom, the kernel can run the fence
//! for both: `membarrier(PRIVATE_EXPEDITED)` makes every processor that runs a thread of this process pass a full
//! barrier before it returns. The frequent side then only has to keep the compiler from moving its read up.
//!
//! The promise: for a thread that calls [`light`] between a write and a read, and one that calls [`heavy`] between a
//! write and a read, at least one of the reads sees the other's write. Two light halves promise one another nothing.
//!
//! `heavy` costs some microseconds to tens of microseconds and interrupts the processors the process runs on, so it
//! belongs where a stop or a hand-over happens anyway. Where the kernel has no such call (older than 4.14, or a sandbox
//! that forbids it) both halves are full fences. So they are from the moment on in which a sandbox that came later refuses it; then, once, the thread runs on each
//! processor in turn, where the scheduler has passed the barrier for the light halves that were under way.
//!
//! **When to use:** in Dekker's pattern, where one side runs a hundred times as often as the other or more. **When not:** where
//! both sides are frequent, or between processes. **Progress:** neither half waits for another thread of the program. **Cost:** light:
//! a load and nothing for the processor to wait for; heavy: one system call, 0.3 to 0.4 us alone on two processors, and an
//! interrupt for each that runs this process. **Forks:** a child has its parent's registration; `init` may be called again.

#[cfg(not(loom))]
pub use kernel::{heavy, init, light};
#[cfg(loom)]
pub use model::{heavy, init, light};

#[cfg(not(loom))]
mod kernel {
    use crate::atomic::{AtomicU32, Ordering, fence};
    use crate::errno::keep_errno;
    use core::sync::atomic::compiler_fence;

    /// Both halves are full fences.
    const FENCES: u32 = 0;
    /// The light half is free, and the kernel runs the heavy one for both sides.
    const KERNEL: u32 = 1;
    /// Both halves are full fences; but light ones that were free may be under way.
    const LEAVING: u32 = 2;

    /// How the halves are made.
    ///
    /// Sync: `asymmetric.mode`.
    static MODE: AtomicU32 = AtomicU32::new(FENCES);

    /// Chooses how the two halves are made, and registers with the kernel.
    ///
    /// Until it is called, both halves are full fences. It may be called at any time and again, in a fork child as well:
    /// `heavy` passes its fence before it asks for the mode, so one that still finds the old mode has made its writes
    /// visible before any thread can take the free half.
    pub fn init() {
        let wanted = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED | libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
        let wanted = libc::c_long::from(wanted);
        let usable = membarrier(libc::MEMBARRIER_CMD_QUERY).is_ok_and(|commands| commands & wanted == wanted)
            && membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok();
        if usable {
            // ORDER asymmetric.mode: Release, with the load in `light`, whose thread reads after it what `heavy` wrote before it
            // found the old mode.
            MODE.store(KERNEL, Ordering::Release);
        } else if MODE.load(Ordering::Relaxed) != FENCES {
            leave();
        }
    }

    /// The frequent half: orders this thread's earlier writes before its later reads, as seen by a thread that calls
    /// [`heavy`].
    #[inline(always)]
    pub fn light() {
        // ORDER asymmetric.mode: Acquire, with the store in `init`; free on x86-64.
        if MODE.load(Ordering::Acquire) == KERNEL {
            // ORDER asymmetric.dekker: a compiler fence, with the membarrier in `heavy`, which brings the processor's
            // part.
            compiler_fence(Ordering::SeqCst);
        } else {
            // ORDER asymmetric.dekker: SeqCst, with the fence in `heavy`.
            fence(Ordering::SeqCst);
        }
    }

    /// The rare half: a full fence here and, between some two instructions, in every other running thread.
    pub fn heavy() {
        // ORDER asymmetric.dekker: SeqCst, with the fence in `light`. Before the mode is read: see `init`.
        fence(Ordering::SeqCst);
        // ORDER asymmetric.mode: Acquire, with the exchange in `leave`: what light halves that were free wrote is visible. For `init`'s store the fence above does.
        let mode = MODE.load(Ordering::Acquire);
        if mode == FENCES {
            return;
        }
        // ORDER asymmetric.dekker: the system call is a full barrier on this and on every processor that runs this
        // process, with the compiler fence in `light`; the compiler fences here keep the call between the caller's
        // accesses.
        compiler_fence(Ordering::SeqCst);
        let is_done = mode == KERNEL && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).is_ok();
        compiler_fence(Ordering::SeqCst);
        if !is_done {
            leave();
        }
    }

    /// A sandbox has come that refuses the call, at least to this thread: from here on both halves are full fences. Light halves that began before are
    /// over, or have passed a full barrier, when it returns.
    #[cold]
    fn leave() {
        // A thread that finds this goes the same way; it would not do to return before the other has been on each processor.
        // ORDER asymmetric.mode: Relaxed, with the load in `light`; the scheduler's barriers, below, order it.
        _ = MODE.compare_exchange(KERNEL, LEAVING, Ordering::Relaxed, Ordering::Relaxed);
        // ORDER asymmetric.dekker: the scheduler passes a full barrier where it changes threads, with the compiler fence in `light`. Whoever reads the mode on a
        // processor after this thread has been there finds the new one.
        let was_everywhere = visit_processors();
        assert!(
            was_everywhere,
            "larder: membarrier(PRIVATE_EXPEDITED) failed after its registration succeeded, and so did sched_setaffinity: have the sandbox allow one of them"
        );
        // ORDER asymmetric.mode: Release, with the load in `heavy`.
        _ = MODE.compare_exchange(LEAVING, FENCES, Ordering::Release, Ordering::Relaxed);
    }

    /// Runs on each processor that this thread may be bound to, one after the other, and is bound as before then. Says whether it could.
    fn visit_processors() -> bool {
        // 8192 processors, the most for which a kernel is built.
        let mut before = [0_u64; 128];
        let bits = u64::BITS as usize;
        // SAFETY: the kernel writes no more than the set has room for.
        let known = keep_errno(|| unsafe {
            libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&before), before.as_mut_ptr())
        });
        let Ok(bytes) = known else { return false };
        let bind = |set: &[u64; 128]| {
            // SAFETY: the kernel reads a set of this length.
            keep_errno(|| unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(set), set.as_ptr()) })
                .is_ok()
        };
        let mut visited = 0;
        for processor in 0..bytes as usize * 8 {
            let mut here = [0; 128];
            here[processor / bits] = 1 << (processor % bits);
            // Not where there is none, and where this process may not run.
            visited += usize::from(bind(&here));
        }
        bind(&before) && visited > 0
    }

    fn membarrier(command: libc::c_int) -> Result<libc::c_long, i32> {
        // SAFETY: `membarrier` takes no memory, and an unknown command is refused.
        keep_errno(|| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })
    }
}

/// Both halves are full fences: loom has neither a kernel nor compiler reordering. This is also the fallback that
/// ships.
#[cfg(loom)]
mod model {
    use crate::atomic::{Ordering, fence};

    /// Chooses nothing.
    pub fn init() {}

    /// The frequent half.
    pub fn light() {
        // ORDER asymmetric.dekker: SeqCst, with the fence in `heavy`.
        fence(Ordering::SeqCst);
    }

    /// The rare half.
    pub fn heavy() {
        // ORDER asymmetric.dekker: SeqCst, with the fence in `light`.
        fence(Ordering::SeqCst);
    }
}
