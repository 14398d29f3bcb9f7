//! Threads and processes that glibc did not make as usual: without registration, children of vfork and of raw clone, CPUs
//! that come and go from the affinity mask.

#[path = "unregistered/mod.rs"]
mod unregistered;

use std::ffi::c_void;
use std::process::{Command, ExitStatus};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread;

use larder_percpu::ground::Association;
use larder_percpu::sequence::{SLAB, Slot, bump, replace};
use larder_percpu::structures::Counter;
use larder_percpu::{By, Domain, Ground, Guarded64, Mode, Options};
use larder_sys::rseq_area::{self, Index};
use unregistered::unregister;

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

/// The sequences of the allocation buffers likewise take nothing, by whichever index.
#[test]
fn a_thread_without_registration_takes_nothing_from_a_buffer() {
    for way in ["concurrency ids", "CPUs", "threads"] {
        let ground = Ground::new();
        let has_sequences = match way {
            "threads" => ground.set_up_for_threads(),
            _ => {
                let index = if way == "CPUs" { Index::CpuId } else { Index::MmCid };
                !matches!(ground.set_up_by(larder_sys::cpus::possible(), index), Association::Thread(_))
            }
        };
        if !has_sequences {
            return eprintln!("no sequences here");
        }
        let indices = ground.indices() as usize;
        let slabs = larder_sys::memory::map_lazy(larder_units::Bytes(indices * SLAB)).unwrap();
        let first = slabs.as_ptr().expose_provenance();
        // SAFETY: as many slabs as indices are mapped, and stay so; zero is a slot.
        let slot = |index: usize| unsafe { &*ptr::with_exposed_provenance::<Slot>(first + index * SLAB) };
        let full = [64, 1024];
        (0..indices).for_each(|index| assert!(slot(index).compare_exchange([0, 0], full)));
        // SAFETY: the ground is set up, and the slot is in the first slab.
        let take = || unsafe { bump(&ground, first, 16) };
        assert_ne!(take(), 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(ground.current_index().is_some());
                assert!(unregister());
                assert_eq!(ground.current_index(), None, "by {way}");
                let before: Vec<_> = (0..indices).map(|index| slot(index).load()).collect();
                for pair in [full, before[0]] {
                    assert_eq!(take(), 0, "by {way}");
                    // SAFETY: as in `take`.
                    assert!(!unsafe { replace(&ground, first, pair, [0, 0]) }, "by {way}");
                }
                assert_eq!(before, (0..indices).map(|index| slot(index).load()).collect::<Vec<_>>());
            });
        });
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

/// What a thread that the C library does not know works on, and how often; and whether it was registered.
static COUNTED: AtomicPtr<Counter> = AtomicPtr::new(null_mut());
static WAS_REGISTERED: AtomicU32 = AtomicU32::new(0);
const ADDITIONS: u64 = 10_000;

/// A thread made by the system call, with thread-local storage of its own, which says that it is not registered: it uses the
/// shard beside threads that have an index.
#[test]
fn a_thread_made_by_a_system_call_uses_the_shard() {
    extern "C" fn stranger(_: *mut c_void) -> i32 {
        // SAFETY: the counter lives until this thread has ended, which the test waits for.
        let counter = unsafe { &*COUNTED.load(Ordering::Acquire) };
        WAS_REGISTERED.store(rseq_area::is_registered_here().into(), Ordering::Relaxed);
        (0..ADDITIONS).for_each(|_| counter.add(1));
        // SAFETY: ends this thread alone, leaving nothing of the C library's in order.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        0
    }
    // The loader's own way to make thread-local storage.
    // SAFETY: terminated names.
    let (make, unmake) = unsafe {
        let find = |name: &std::ffi::CStr| libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        (find(c"_dl_allocate_tls"), find(c"_dl_deallocate_tls"))
    };
    let Ok(area) = rseq_area::find() else { return eprintln!("no sequences here") };
    if make.is_null() || unmake.is_null() {
        return eprintln!("SKIPPED: the loader exports no way to make thread-local storage");
    }
    for by in [By::ConcurrencyId, By::Cpu] {
        let counter = Counter::new(by);
        counter.add(1);
        COUNTED.store(ptr::from_ref(&counter).cast_mut(), Ordering::Release);
        let mut stack = vec![0u128; 16 * 1024];
        let gone = AtomicU32::new(1);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..ADDITIONS).for_each(|_| counter.add(1)));
            }
            // SAFETY: the loader's functions have these types; it makes the block itself where it gets null. The block's first and
            // third words are its own address, as the thread library has it. The clone shares everything but its stack and its
            // thread pointer, and both stay until the kernel says that it is gone.
            unsafe {
                let make = std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void) -> *mut c_void>(make);
                let unmake = std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void, bool)>(unmake);
                let block = make(null_mut());
                assert!(!block.is_null());
                for word in [0, 2] {
                    block.cast::<*mut c_void>().add(word).write(block);
                }
                // Not registered, as the kernel's interface has it: the loader leaves a zero there.
                block.byte_offset(area.offset + rseq_area::CPU_ID).cast::<i32>().write(-1);
                let shared = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND;
                let flags =
                    shared | libc::CLONE_THREAD | libc::CLONE_SYSVSEM | libc::CLONE_SETTLS | libc::CLONE_CHILD_CLEARTID;
                let top = stack.as_mut_ptr().add(stack.len() - 64);
                let tid =
                    libc::clone(stranger, top.cast(), flags, null_mut(), null_mut::<c_void>(), block, gone.as_ptr());
                assert!(tid > 0);
                while gone.load(Ordering::Acquire) != 0 {
                    thread::yield_now();
                }
                unmake(block, true);
            }
        });
        assert_eq!(WAS_REGISTERED.load(Ordering::Relaxed), 0);
        assert_eq!(counter.sum(), 4 * ADDITIONS + 1);
        assert!(counter.domain().core().by_lock() >= ADDITIONS);
    }
}

/// Which system call a sandbox refuses, in the environment of a process that was started in one.
const REFUSED: &str = "LARDER_TEST_REFUSED";

/// Has the kernel answer ENOSYS to a system call, in this thread and all that it starts.
fn refuse(call: i64) -> bool {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO};
    let line = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The number of the call is the first word of what a filter sees.
        line(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        line(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call as u32),
        line(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        line(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program lives through the call, which copies it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    }
}

/// A process that was started in a sandbox which refuses one of the two calls works by locks, and says why.
#[test]
fn a_process_in_a_sandbox_works_by_locks() {
    let calls = [("rseq", libc::SYS_rseq, "restartable"), ("membarrier", libc::SYS_membarrier, "membarrier")];
    if let Ok(refused) = std::env::var(REFUSED) {
        let reason = calls.iter().find(|call| call.0 == refused).unwrap().2;
        for by in [By::ConcurrencyId, By::Cpu] {
            let domain: Domain<Guarded64> = Domain::new(by);
            let Mode::Locks(why) = domain.mode() else { panic!("{refused} is refused, but {:?}", domain.mode()) };
            assert!(why.contains(reason), "{why}");
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..1000 {
                            domain
                                .run(|t| t.store(t.area(), t.load() + 1), |area| area.store(&**area, area.load() + 1));
                        }
                    });
                }
            });
            assert_eq!(domain.iter().map(|a| a.load()).sum::<u64>(), 4000);
        }
        return;
    }
    if let Mode::Locks(why) = Domain::<Guarded64>::new(By::Cpu).mode() {
        return eprintln!("locks in any case: {why}");
    }
    for (name, call, _) in calls {
        // The filter is of the thread that sets it, and of the process that it becomes.
        let ended = thread::spawn(move || refuse(call).then(|| again("a_process_in_a_sandbox_works_by_locks", name)));
        match ended.join().unwrap() {
            Some((status, said)) => assert!(status.success() && said.contains("1 passed"), "without {name}: {said}"),
            None => eprintln!("SKIPPED: the kernel takes no filter"),
        }
    }
}

/// Runs one test of this file in a process of its own, with `REFUSED` in its environment; what it said.
fn again(test: &str, refused: &str) -> (ExitStatus, String) {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args(["--exact", test, "--nocapture"]).env(REFUSED, refused).output().unwrap();
    (output.status, String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// In a sandbox that was entered later, nothing can be taken over any more: the process stops rather than go on without exclusion.
#[test]
fn a_sandbox_without_membarrier_ends_a_take_over() {
    let counter = Counter::new(By::Cpu);
    counter.add(1);
    if let Mode::Locks(why) = counter.domain().mode() {
        return eprintln!("nothing is aborted: {why}");
    }
    if std::env::var_os(REFUSED).is_some() {
        if !refuse(libc::SYS_membarrier) {
            return eprintln!("SKIPPED: the kernel takes no filter");
        }
        counter.add(1);
        assert_eq!(counter.sum(), 2);
        _ = counter.take_all();
        return eprintln!("it went on");
    }
    let (status, said) = again("a_sandbox_without_membarrier_ends_a_take_over", "membarrier, later");
    let ended = !status.success() && said.contains("membarrier does not abort sequences any more");
    assert!(ended && !said.contains("it went on") || said.contains("SKIPPED"), "{status}: {said}");
}
