//! Threads and processes that glibc did not make as usual: without registration, children of vfork and of raw clone, CPUs
//! that come and go from the affinity mask.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use larder_percpu::structures::Counter;
use larder_percpu::{By, Domain, Guarded64, Mode, Options};
use larder_sys::rseq_area;

/// Takes the calling thread's registration away, as if a sandbox had refused it: `cpu_id` is negative then, and the
/// concurrency id is 0.
fn unregister() -> bool {
    const SIGNATURE: u32 = 0x5305_3053;
    let Ok(area) = rseq_area::find() else { return false };
    let at = larder_sys::thread::thread_pointer().wrapping_offset(area.offset);
    [32, 64].into_iter().any(|length| {
        // SAFETY: the registered area of this thread, which ends soon.
        unsafe { libc::syscall(libc::SYS_rseq, at, length, 1, SIGNATURE) == 0 }
    })
}

#[test]
fn a_thread_without_registration_uses_the_shard() {
    for by in [By::ConcurrencyId, By::Cpu] {
        let counter = Counter::new(by);
        let domain: Domain<Guarded64> = Domain::new(by);
        counter.add(1);
        let before = domain.begin().index();
        if matches!(domain.mode(), Mode::Locks(_)) {
            return eprintln!("no sequences here: every thread uses shards");
        }
        assert!(before < domain.core().sequence_areas());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    assert!(rseq_area::is_registered_here());
                    assert!(unregister());
                    assert!(!rseq_area::is_registered_here());
                    for _ in 0..1000 {
                        counter.add(1);
                        domain.run(
                            |t| {
                                assert!(t.index() >= domain.core().sequence_areas());
                                t.store(t.area(), t.load() + 1)
                            },
                            |area| area.store(&**area, area.load() + 1),
                        );
                    }
                });
                scope.spawn(|| (0..1000).for_each(|_| counter.add(1)));
            }
        });
        assert_eq!(counter.sum(), 8001);
        assert_eq!(domain.iter().map(|a| a.load()).sum::<u64>(), 4000);
        assert!(domain.statistics().by_lock >= 8000);
    }
}

/// A child of vfork has its parent's area, which the kernel does not keep for it. That can be found out, and is the reason why
/// such a child must not use sequences.
#[test]
fn a_child_of_vfork_knows_that_it_is_not_registered() {
    static SAID: AtomicU32 = AtomicU32::new(0);
    extern "C" fn child(_: *mut libc::c_void) -> i32 {
        SAID.store(1 + u32::from(rseq_area::is_registered_here()), Ordering::Relaxed);
        0
    }
    if !rseq_area::is_registered_here() {
        return eprintln!("no sequences here");
    }
    let mut stack = vec![0u8; 64 * 1024];
    // SAFETY: the stack is large enough and lives until the child has ended, which CLONE_VFORK waits for.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).map_addr(|a| a & !15);
        libc::clone(child, top.cast(), libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, std::ptr::null_mut())
    };
    assert!(pid > 0);
    let mut status = 0;
    // SAFETY: the child's status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(SAID.load(Ordering::Relaxed), 1, "the child is not registered");
    assert!(rseq_area::is_registered_here(), "and the parent still is");
}

/// A process that a raw system call copied has locks and areas like a child of fork.
#[test]
fn a_child_made_by_a_system_call_goes_on() {
    for sequences in [true, false] {
        let counter = Counter::with(Options { sequences, ..Options::new(By::Cpu) });
        counter.add(5);
        // SAFETY: the child only counts and ends.
        unsafe {
            let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32;
            if child == 0 {
                counter.add(1);
                let right = counter.take_all() == Ok(6) && counter.sum() == 0;
                libc::_exit(i32::from(!right));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status, 0);
        }
        assert_eq!(counter.sum(), 5);
    }
}

/// In a child of fork, an index that another thread of the parent had closed is empty and open again.
#[test]
fn a_take_over_that_stayed_behind_is_undone_in_the_child() {
    let domain: Domain<Guarded64> = Domain::new(By::Cpu);
    domain.set_up().unwrap();
    if domain.mode() != Mode::Cpus {
        return eprintln!("no sequences here");
    }
    for area in 0..domain.core().sequence_areas() {
        domain.take_over(area, |a| a.store(&**a, 7)).unwrap();
    }
    let (closed, forked) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            // Holds every index of this machine's CPUs.
            fn hold(d: &Domain<Guarded64>, index: usize, then: &dyn Fn()) {
                match index.checked_sub(1) {
                    Some(below) => d.take_over(below, |_| hold(d, below, then)).unwrap(),
                    None => then(),
                }
            }
            hold(&domain, domain.core().sequence_areas(), &|| {
                closed.wait();
                forked.wait();
            });
        });
        closed.wait();
        // SAFETY: the child only uses the domain and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let t = domain.begin();
                let right = t.index() < domain.core().sequence_areas() && t.load() == 0 && t.store(t.area(), 1).is_ok();
                libc::_exit(i32::from(!right));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status, 0);
        }
        // In the parent it is closed: the shard serves.
        assert!(domain.begin().index() >= domain.core().sequence_areas());
        forked.wait();
    });
    assert!(domain.begin().index() < domain.core().sequence_areas());
}
