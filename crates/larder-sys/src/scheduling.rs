//! How the kernel schedules the runtime's own threads: as the one that began the program.
//!
//! A thread inherits the policy, the priority and the CPUs of the one that makes it, and the one that makes the runtime's is whichever is the first to
//! need memory: one for work in the background, say, or one that is bound to a CPU. The whole program would then wait for markers that have none.

use crate::cpus::CpuSet;

/// The kernel's `struct sched_attr`, in its first size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}
const SIZE: u32 = size_of::<Attributes>() as u32;
const _: () = assert!(SIZE == 48, "the kernel's SCHED_ATTR_SIZE_VER0");

impl Attributes {
    /// Those of a thread, by its number; `None` where the kernel does not say.
    fn of(thread: libc::pid_t) -> Option<Self> {
        let mut it = Self::default();
        // SAFETY: the buffer is valid for its length.
        let r = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut it, SIZE, 0) };
        (r == 0).then_some(it)
    }

    /// Has the calling thread be scheduled so; false where the kernel refuses.
    fn take(&self) -> bool {
        // SAFETY: the record is valid, and says how large it is.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *self, 0) == 0 }
    }
}

/// The calling thread, one of the runtime's, is scheduled as the one that began the program, as far as the kernel allows: without a privilege, who was made by a
/// thread of a lower priority keeps that.
pub fn as_program() {
    // SAFETY: neither has preconditions.
    let (own, program) = unsafe { (libc::gettid(), libc::getpid()) };
    if let (Some(mine), Some(all)) = (CpuSet::of(own), CpuSet::of(program))
        && mine.count() < all.count()
    {
        all.bind(own);
    }
    if let (Some(mine), Some(all)) = (Attributes::of(0), Attributes::of(program))
        && mine != all
        // Its time is the program's own.
        && all.policy != libc::SCHED_DEADLINE as u32
    {
        Attributes { size: SIZE, flags: 0, ..all }.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_that_another_one_makes_is_scheduled_as_the_program() {
        // SAFETY: neither has preconditions.
        let (program, is_root) = unsafe { (libc::getpid(), libc::geteuid() == 0) };
        let (wanted, all) = (Attributes::of(program).unwrap(), CpuSet::of(program).unwrap());
        thread::spawn(move || {
            let mut one = CpuSet::NONE;
            one.put((0..8192).find(|&cpu| all.has(cpu)).unwrap(), true);
            assert!(one.bind(0));
            let low = Attributes { policy: libc::SCHED_BATCH as u32, size: SIZE, ..wanted };
            assert!(low.take());
            thread::spawn(move || {
                assert_eq!(Attributes::of(0).unwrap().policy, libc::SCHED_BATCH as u32);
                as_program();
                assert_eq!((Attributes::of(0).unwrap(), CpuSet::of(0).unwrap()), (wanted, all));
            })
            .join()
            .unwrap();
            assert!(Attributes { nice: 19, ..low }.take());
            thread::spawn(move || {
                as_program();
                // Without the privilege the policy may not change either.
                let nice = Attributes::of(0).unwrap().nice;
                assert!(nice == wanted.nice || nice == 19 && !(is_root && Attributes { nice: 0, ..low }.take()));
                assert_eq!(CpuSet::of(0).unwrap(), all);
            })
            .join()
            .unwrap();
        })
        .join()
        .unwrap();
    }
}
