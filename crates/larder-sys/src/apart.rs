//! Threads of the runtime's own that are to run beside the thread that wakes them.
//!
//! The kernel may put a thread that is woken onto its waker's CPU although another one has nothing to do, and leave it there until the next tick, which is
//! longer than most cycles: both then take turns on one CPU. So a helper may not run on the CPU of who is about to wake it.

use core::sync::atomic::{AtomicI32, Ordering};

use crate::cpus::{self, CpuSet};
use crate::scheduling;

/// One such thread.
///
/// [`Apart::begin`] is for the thread itself, [`Apart::let_go`] for any; all else for the one who wakes it, one at a time.
pub struct Apart {
    /// Its number; 0 before it has begun. Sync: the thread stores it; a hint.
    thread: AtomicI32,
    /// The CPU on which it may not run, and one more; 0 for none. Sync: who wakes it, and who lets it go; a hint.
    off: AtomicI32,
}

impl Apart {
    /// No thread yet.
    pub const fn new() -> Self {
        Self { thread: AtomicI32::new(0), off: AtomicI32::new(0) }
    }

    /// The calling thread is the one. It is scheduled [as the program](scheduling::as_program).
    pub fn begin(&self) {
        scheduling::as_program();
        // SAFETY: gettid has no preconditions.
        self.thread.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    }

    /// Not in the frame of a cycle: two sets of CPUs take 2 KiB of a stack that may be small.
    #[inline(never)]
    fn keep_off(&self, cpu: usize) {
        let thread = self.thread.load(Ordering::Relaxed);
        let off = self.off.load(Ordering::Relaxed);
        if thread == 0 || off == cpu as i32 + 1 {
            return;
        }
        // SAFETY: getpid has no preconditions.
        let (Some(mut set), Some(program)) = (CpuSet::of(thread), CpuSet::of(unsafe { libc::getpid() })) else {
            return;
        };
        // The program may have been bound to fewer CPUs meanwhile.
        if off > 0 && program.has(off as usize - 1) {
            set.put(off as usize - 1, true);
        }
        set.put(cpu, false);
        let bound = set.count() > 0 && set.bind(thread);
        self.off.store(if bound { cpu as i32 + 1 } else { off }, Ordering::Relaxed);
    }

    /// It may run wherever the program may, until it is next kept off a CPU. Any thread may ask: where another one wakes it at the
    /// same time, it is bound as either says.
    pub fn let_go(&self) {
        let thread = self.thread.load(Ordering::Relaxed);
        if thread == 0 || self.off.load(Ordering::Relaxed) == 0 {
            return;
        }
        // SAFETY: getpid has no preconditions.
        let Some(all) = CpuSet::of(unsafe { libc::getpid() }) else { return };
        if all.bind(thread) {
            self.off.store(0, Ordering::Relaxed);
        }
    }

    /// In a child of fork: there is no such thread.
    pub fn forget(&self) {
        if self.thread.load(Ordering::Relaxed) != 0 {
            self.thread.store(0, Ordering::Relaxed);
            self.off.store(0, Ordering::Relaxed);
        }
    }
}

/// From here on these threads do not run on the calling thread's CPU, if there is another one for them. Several system calls for each whose CPU was another the
/// last time, and one for all.
pub fn keep_off_this_cpu(threads: &[Apart]) {
    let cpu = cpus::current();
    threads.iter().for_each(|thread| thread.keep_off(cpu));
}

impl Default for Apart {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    #[test]
    fn a_thread_is_kept_off_one_cpu_after_another() {
        // SAFETY: gettid has no preconditions.
        let me = unsafe { libc::gettid() };
        let all = CpuSet::of(me).unwrap();
        // SAFETY: as above.
        let program = CpuSet::of(unsafe { libc::getpid() }).unwrap();
        let cpus: Vec<usize> = (0..8192).filter(|&cpu| all.has(cpu)).take(3).collect();
        if cpus.len() < 2 {
            eprintln!("SKIPPED a_thread_is_kept_off_one_cpu_after_another: there is one CPU");
            return;
        }
        let apart = Arc::new(Apart::new());
        keep_off_this_cpu(core::slice::from_ref(&*apart));
        let (begun, begins) = channel();
        let (end, ends) = channel::<()>();
        let of_thread = apart.clone();
        let thread = std::thread::spawn(move || {
            of_thread.begin();
            // SAFETY: as above.
            begun.send(unsafe { libc::gettid() }).unwrap();
            _ = ends.recv();
        });
        let other = begins.recv().unwrap();
        for _ in 0..3 {
            for &cpu in &cpus {
                let mut here = CpuSet::NONE;
                here.put(cpu, true);
                assert!(here.bind(me));
                keep_off_this_cpu(core::slice::from_ref(&*apart));
                let set = CpuSet::of(other).unwrap();
                assert!(!set.has(cpu) && set.count() == program.count() - 1);
            }
        }
        assert!(all.bind(me));
        apart.let_go();
        assert_eq!(CpuSet::of(other).unwrap(), program);
        drop(end);
        thread.join().unwrap();
    }
}
