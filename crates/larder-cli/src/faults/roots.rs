//! Roots that appear and vanish.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use super::collector::{Collector, StackBase};
use super::module::{self, Module};
use super::{Outcome, Scratch, failed};

/// dlopen and dlclose race a collection; the object's data is a root while it is loaded.
pub fn modules_come_and_go(gc: &Collector, scratch: &Scratch) -> Result<(), Outcome> {
    const THREADS: usize = 3;
    let paths: Vec<_> = (0..THREADS).map(|i| scratch.file(&format!("module-{i}.so"))).collect();
    for path in &paths {
        module::write(path, 64).map_err(failed)?;
    }
    gc.while_collecting(|| {
        gc.crowd(
            THREADS,
            |number| {
                for seed in 0..8 {
                    let module = Module::load(&paths[number]).map_err(Outcome::Failed)?;
                    let seed = (number as u64) << 32 | seed << 8;
                    // SAFETY: the object's own word.
                    unsafe { module.data().write_volatile(gc.chain(seed)) };
                    gc.collect();
                    // SAFETY: as above.
                    gc.check(unsafe { module.data().read_volatile() }, seed, "what a library's data points to")?;
                }
                Ok(())
            },
            || Ok(()),
        )
    })
}

/// Threads that run already get thread-local storage of libraries that are loaded later: their vectors of storage
/// are allocated anew, again and again, while the world is stopped and their words are roots.
pub fn late_thread_local_storage(gc: &Collector, scratch: &Scratch) -> Result<(), Outcome> {
    const THREADS: usize = 3;
    // More than the vectors have room for at first, so that they move.
    const MODULES: usize = 40;
    let path = |i: usize| scratch.file(&format!("late-{i}.so"));
    for i in 0..MODULES {
        module::write(&path(i), 64 + 512 * (i % 3)).map_err(failed)?;
    }
    let loaded = Mutex::new(Vec::new());
    let barrier = Barrier::new(THREADS + 1);
    let step = 8;
    gc.while_collecting(|| {
        gc.crowd(
            THREADS,
            |number| {
                let mut result = Ok(());
                for _ in (0..MODULES).step_by(step) {
                    barrier.wait();
                    let modules: Vec<(u64, *mut *mut c_void)> = {
                        let guard = loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                        guard.iter().enumerate().map(|(i, m): (usize, &Module)| (i as u64, m.local())).collect()
                    };
                    for &(i, word) in &modules {
                        // SAFETY: this thread's own word.
                        unsafe { word.write_volatile(gc.chain((number as u64) << 32 | i << 8)) };
                    }
                    gc.collect();
                    for &(i, word) in &modules {
                        let seed = (number as u64) << 32 | i << 8;
                        // SAFETY: as above.
                        let head = unsafe { word.read_volatile() };
                        result = result.and(gc.check(head, seed, "what late thread-local storage points to"));
                    }
                    barrier.wait();
                }
                result
            },
            || {
                let mut result = Ok(());
                for first in (0..MODULES).step_by(step) {
                    for i in first..first + step {
                        match Module::load(&path(i)) {
                            Ok(module) => loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(module),
                            Err(why) => result = Err(Outcome::Failed(why)),
                        }
                    }
                    barrier.wait();
                    barrier.wait();
                }
                result
            },
        )
    })
}

thread_local! {
    static KEPT: Cell<*mut c_void> = const { Cell::new(null_mut()) };
}
/// What destructors found wrong.
static FAULTS: AtomicU32 = AtomicU32::new(0);
/// How many destructors ran.
static RAN: AtomicU32 = AtomicU32::new(0);
/// For destructors, which get one argument. Sync: set before threads start.
static GC: AtomicPtr<Collector> = AtomicPtr::new(null_mut());

fn collector() -> &'static Collector {
    // SAFETY: each line that uses it leaks its copy.
    unsafe { &*GC.load(Ordering::Acquire) }
}

fn publish(gc: &Collector) {
    if GC.load(Ordering::Acquire).is_null() {
        GC.store(Box::into_raw(Box::new(*gc)), Ordering::Release);
    }
}

/// Checks what it gets, allocates, collects, and checks again.
fn use_the_heap(head: *mut c_void, seed: u64) {
    let gc = collector();
    let more = gc.chain(seed + 1000);
    gc.collect();
    let fine = gc.check(head, seed, "").is_ok() && gc.check(more, seed + 1000, "").is_ok();
    FAULTS.fetch_add(u32::from(!fine), Ordering::Relaxed);
    RAN.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn at_key(head: *mut c_void) {
    use_the_heap(head, 1);
}

extern "C" fn at_thread_exit(_: *mut c_void) {
    use_the_heap(KEPT.get(), 2);
}

unsafe extern "C" {
    // What a C++ `thread_local` with a destructor compiles to.
    fn __cxa_thread_atexit_impl(
        destructor: extern "C" fn(*mut c_void),
        object: *mut c_void,
        handle: *mut c_void,
    ) -> i32;
    static __dso_handle: u8;
}

/// Destructors of a key, and of C++ thread-local objects, allocate and collect while their thread ends.
pub fn destructors_at_thread_exit(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    const THREADS: usize = 4;
    publish(gc);
    let mut key = 0;
    // SAFETY: the destructor matches.
    if unsafe {
        libc::pthread_key_create(
            &mut key,
            Some(std::mem::transmute::<extern "C" fn(*mut c_void), unsafe extern "C" fn(*mut c_void)>(at_key)),
        )
    } != 0
    {
        return Err(Outcome::Failed("no key for thread-specific data".into()));
    }
    RAN.store(0, Ordering::Relaxed);
    let result = gc.while_collecting(|| {
        gc.crowd(
            THREADS,
            |_| {
                KEPT.set(gc.chain(2));
                // Nothing but the key holds it.
                let of_key = gc.chain(1);
                // SAFETY: the key was made above, and the object is this thread's storage.
                unsafe {
                    libc::pthread_setspecific(key, of_key);
                    __cxa_thread_atexit_impl(at_thread_exit, null_mut(), (&raw const __dso_handle).cast_mut().cast());
                }
                Ok(())
            },
            || Ok(()),
        )
    });
    // SAFETY: no thread uses the key any more.
    unsafe { libc::pthread_key_delete(key) };
    result?;
    match (RAN.load(Ordering::Relaxed), FAULTS.load(Ordering::Relaxed)) {
        (ran, 0) if ran == 2 * THREADS as u32 => Ok(()),
        (ran, 0) => Err(Outcome::Failed(format!("{ran} destructors ran instead of {}", 2 * THREADS))),
        (_, faults) => Err(Outcome::Failed(format!("{faults} destructors found their data freed"))),
    }
}

/// One fiber: its stack and where it stands.
struct Fiber {
    stack: Vec<u128>,
    context: libc::ucontext_t,
}

/// What a fiber needs to begin; one thread switches, so a plain word of that thread says which.
struct Switching<'a> {
    gc: &'a Collector,
    home: *mut libc::ucontext_t,
    fibers: *mut Fiber,
    number: usize,
    result: Result<(), Outcome>,
}

thread_local! {
    static SWITCHING: Cell<*mut c_void> = const { Cell::new(null_mut()) };
}

extern "C" fn fiber_begins() {
    // SAFETY: `fibers` below sets it to its own local before it switches here.
    let state = unsafe { &mut *SWITCHING.get().cast::<Switching<'_>>() };
    let (gc, number) = (state.gc, state.number);
    let seed = 7000 + number as u64 * 100;
    let head = gc.chain(seed);
    for _ in 0..3 {
        gc.collect();
        let result = gc.check(head, seed, "what a fiber's stack points to");
        if result.is_err() {
            state.result = result;
        }
        // SAFETY: both contexts are `fibers`'s own.
        unsafe { libc::swapcontext(&raw mut (*state.fibers.add(number)).context, state.home) };
    }
    std::hint::black_box(head);
}

/// Fibers on stacks of their own, which the thread announces with `GC_set_stackbottom`; the stacks that rest are
/// registered as roots.
pub fn fibers(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    const FIBERS: usize = 3;
    const WORDS: usize = 4096;
    gc.while_collecting(|| {
        // SAFETY: zeroes are a valid context to be filled in.
        let mut home = unsafe { std::mem::zeroed::<libc::ucontext_t>() };
        let mut fibers: Vec<Fiber> = (0..FIBERS)
            // SAFETY: as above.
            .map(|_| Fiber { stack: vec![0u128; WORDS], context: unsafe { std::mem::zeroed() } })
            .collect();
        let mut state = Switching { gc, home: &raw mut home, fibers: fibers.as_mut_ptr(), number: 0, result: Ok(()) };
        SWITCHING.set((&raw mut state).cast());
        let mut own = StackBase::default();
        let thread = (gc.GC_get_my_stackbottom)(&mut own);
        let ends = |fiber: &mut Fiber| {
            let low = fiber.stack.as_mut_ptr();
            (low.cast::<c_void>(), low.wrapping_add(WORDS).cast::<c_void>())
        };
        for fiber in &mut fibers {
            let (low, high) = ends(fiber);
            (gc.GC_add_roots)(low, high);
            // SAFETY: the context is initialised here, its stack outlives it, and it returns nowhere.
            unsafe {
                libc::getcontext(&mut fiber.context);
                fiber.context.uc_stack.ss_sp = low;
                fiber.context.uc_stack.ss_size = WORDS * 16;
                fiber.context.uc_link = null_mut();
                libc::makecontext(&mut fiber.context, fiber_begins, 0);
            }
        }
        // The stack that this thread leaves must stay a root while a fiber runs.
        let seed = 5;
        let kept = gc.chain(seed);
        let low = (&raw const kept).addr() & !15;
        for _ in 0..3 {
            for (number, fiber) in fibers.iter_mut().enumerate() {
                let high = ends(fiber).1;
                // SAFETY: the context was made above; the thread's own stack from here to its base is a root meanwhile.
                unsafe {
                    state.number = number;
                    let rest = std::ptr::with_exposed_provenance_mut(low);
                    let base = std::ptr::with_exposed_provenance_mut(own.base);
                    (gc.GC_add_roots)(rest, base);
                    (gc.GC_set_stackbottom)(thread, &StackBase { base: high.addr() });
                    libc::swapcontext(&mut home, &raw const fiber.context);
                    (gc.GC_set_stackbottom)(thread, &own);
                    (gc.GC_remove_roots)(rest, base);
                }
                gc.check(kept, seed, "what the first stack points to")?;
            }
        }
        for fiber in &mut fibers {
            let (low, high) = ends(fiber);
            (gc.GC_remove_roots)(low, high);
        }
        state.result
    })
}

/// Whether a thread made by `clone` is done, and whether all was well there.
static CLONE: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// Where that thread's stack begins.
static CLONE_STACK: AtomicUsize = AtomicUsize::new(0);

extern "C" fn clone_begins(_: *mut c_void) -> libc::c_int {
    let gc = collector();
    // The C library knows nothing of this thread, so it says itself where its stack begins.
    let base = StackBase { base: CLONE_STACK.load(Ordering::Relaxed) };
    if (gc.GC_register_my_thread)(&base) == 0 {
        let head = gc.chain(90);
        for _ in 0..3 {
            gc.collect();
        }
        CLONE[1].store(u32::from(gc.check(head, 90, "").is_ok()), Ordering::Relaxed);
        gc.unregister();
    }
    CLONE[0].store(1, Ordering::Release);
    // The whole function of the thread's end: nothing of the C library's is to be left in order.
    // SAFETY: ends this thread alone.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    0
}

/// A thread made by the system call, with thread-local storage of its own, registers itself, allocates and collects.
pub fn raw_clone(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    publish(gc);
    // The loader's own way to make thread-local storage; a debugger's thread library uses it as well.
    // SAFETY: terminated names.
    let (make, unmake) = unsafe {
        (
            libc::dlsym(libc::RTLD_DEFAULT, c"_dl_allocate_tls".as_ptr()),
            libc::dlsym(libc::RTLD_DEFAULT, c"_dl_deallocate_tls".as_ptr()),
        )
    };
    if make.is_null() || unmake.is_null() {
        return Err(Outcome::Skipped("the loader exports no way to make thread-local storage".into()));
    }
    const WORDS: usize = 16384;
    gc.while_collecting(|| {
        CLONE.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let mut stack = vec![0u128; WORDS];
        let top = stack.as_mut_ptr().wrapping_add(WORDS - 64);
        CLONE_STACK.store(top.addr(), Ordering::Relaxed);
        let gone = Box::new(AtomicU32::new(1));
        // SAFETY: the loader's functions have these types; it makes the block itself where it gets null. The control block's
        // first and third words are its own address, as the thread library has it. The clone shares everything but its stack and its
        // thread pointer, and ends before the stack goes.
        unsafe {
            let make = std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void) -> *mut c_void>(make);
            let unmake = std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void, bool)>(unmake);
            let block = make(null_mut());
            if block.is_null() {
                return Err(Outcome::Failed("no thread-local storage for a thread".into()));
            }
            block.cast::<*mut c_void>().write(block);
            block.cast::<*mut c_void>().add(2).write(block);
            // The guards of stacks and of mangled pointers, which belong to the process.
            for word in [5, 6] {
                let own: u64;
                if word == 5 {
                    std::arch::asm!("mov {}, qword ptr fs:[0x28]", out(reg) own);
                } else {
                    std::arch::asm!("mov {}, qword ptr fs:[0x30]", out(reg) own);
                }
                block.cast::<u64>().add(word).write(own);
            }
            let flags = libc::CLONE_VM
                | libc::CLONE_FS
                | libc::CLONE_FILES
                | libc::CLONE_SIGHAND
                | libc::CLONE_THREAD
                | libc::CLONE_SYSVSEM
                | libc::CLONE_SETTLS
                | libc::CLONE_CHILD_CLEARTID;
            let tid =
                libc::clone(clone_begins, top.cast(), flags, null_mut(), null_mut::<c_void>(), block, gone.as_ptr());
            if tid < 0 {
                return Err(failed(std::io::Error::last_os_error()));
            }
            // The kernel clears the word when the thread has left its stack for good.
            while gone.load(Ordering::Acquire) != 0 {
                libc::sched_yield();
            }
            unmake(block, true);
        }
        match CLONE[1].load(Ordering::Relaxed) {
            1 => Ok(()),
            _ => Err(Outcome::Failed("what the thread's stack points to was freed, or it could not register".into())),
        }
    })
}

/// The round's number, and in its lower halves how often a helper thread of the C library called back in it, and how often all was
/// well there: one word, because a call of an earlier round may come late.
static HELPED: AtomicU64 = AtomicU64::new(0);

const ROUND: u64 = 1 << 32;
const CALLED: u64 = 1 << 16;

/// Begins a round of calls, and returns what they are to be told.
fn await_calls() -> usize {
    let round = HELPED.load(Ordering::Relaxed) / ROUND + 1;
    HELPED.store(round * ROUND, Ordering::Release);
    round as usize
}

/// How often helper threads called in this round, and how often all was well.
fn helped() -> [u64; 2] {
    let helped = HELPED.load(Ordering::Acquire) % ROUND;
    [helped / CALLED, helped % CALLED]
}

extern "C" fn helper_calls(value: libc::sigval) {
    let gc = collector();
    let registered = gc.register();
    let head = gc.chain(60);
    gc.collect();
    let fine = registered && gc.check(head, 60, "").is_ok();
    if registered {
        gc.unregister();
    }
    let round = value.sival_ptr.addr() as u64;
    let _ = HELPED.fetch_update(Ordering::Release, Ordering::Relaxed, |helped| {
        (helped / ROUND == round).then_some(helped + CALLED + u64::from(fine))
    });
}

/// `struct sigevent` with the members that libc's crate leaves out.
#[repr(C)]
struct ThreadEvent {
    value: usize,
    signal: i32,
    notify: i32,
    function: extern "C" fn(libc::sigval),
    attributes: *const c_void,
    rest: [u64; 4],
}

impl ThreadEvent {
    fn new(value: usize) -> Self {
        const SIGEV_THREAD: i32 = 2;
        Self {
            value,
            signal: 0,
            notify: SIGEV_THREAD,
            function: helper_calls,
            attributes: std::ptr::null(),
            rest: [0; 4],
        }
    }
}

/// Threads that the C library makes for `timer_create` (SIGEV_THREAD) register themselves, allocate and collect.
pub fn timer_threads(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    const CALLS: u64 = 4;
    publish(gc);
    let round = await_calls();
    gc.while_collecting(|| {
        let mut event = ThreadEvent::new(round);
        // SAFETY: the event is laid out as the C library has it, and outlives the timer.
        unsafe {
            let mut timer: libc::timer_t = std::mem::zeroed();
            if libc::timer_create(libc::CLOCK_MONOTONIC, (&raw mut event).cast(), &mut timer) != 0 {
                return Err(failed(std::io::Error::last_os_error()));
            }
            let every = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000 };
            libc::timer_settime(timer, 0, &libc::itimerspec { it_interval: every, it_value: every }, null_mut());
            while helped()[0] < CALLS {
                libc::usleep(500);
            }
            libc::timer_delete(timer);
        }
        Ok(())
    })?;
    let [called, fine] = helped();
    if fine < called { Err(Outcome::Failed(format!("{fine} of {called} calls kept their objects"))) } else { Ok(()) }
}

/// The requests of `getaddrinfo_a`.
#[repr(C)]
struct LookUp {
    name: *const libc::c_char,
    service: *const libc::c_char,
    request: *const libc::addrinfo,
    result: *mut libc::addrinfo,
    status: i32,
    rest: [i32; 5],
}

/// Threads that the C library makes for `getaddrinfo_a` look names up while the world is stopped again and again, and
/// its notification registers itself, allocates and collects.
pub fn name_look_up_threads(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    publish(gc);
    let round = await_calls();
    // SAFETY: a terminated name.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getaddrinfo_a".as_ptr()) };
    if function.is_null() {
        return Err(Outcome::Skipped("this C library has no getaddrinfo_a".into()));
    }
    type Start = unsafe extern "C" fn(i32, *const *mut LookUp, i32, *mut ThreadEvent) -> i32;
    // SAFETY: netdb.h declares it with this type.
    let start = unsafe { std::mem::transmute::<*mut c_void, Start>(function) };
    const GAI_NOWAIT: i32 = 1;
    gc.while_collecting(|| {
        // SAFETY: zeroes are an empty request for numeric addresses, which no server is asked for.
        let mut numeric: libc::addrinfo = unsafe { std::mem::zeroed() };
        numeric.ai_flags = libc::AI_NUMERICHOST;
        let mut requests: Vec<LookUp> = (0..4)
            .map(|_| LookUp {
                name: c"127.0.0.1".as_ptr(),
                service: std::ptr::null(),
                request: &numeric,
                result: null_mut(),
                status: 0,
                rest: [0; 5],
            })
            .collect();
        let list: Vec<*mut LookUp> = requests.iter_mut().map(std::ptr::from_mut).collect();
        let mut event = ThreadEvent::new(round);
        // SAFETY: the requests and the event outlive their handling, which ends with the notification.
        unsafe {
            let error = start(GAI_NOWAIT, list.as_ptr(), list.len() as i32, &mut event);
            if error != 0 {
                return Err(Outcome::Failed(format!("getaddrinfo_a failed ({error})")));
            }
            while helped()[0] < 1 {
                libc::usleep(200);
            }
            for request in &requests {
                if !request.result.is_null() {
                    libc::freeaddrinfo(request.result);
                }
            }
        }
        Ok(())
    })?;
    if helped() == [1, 1] {
        Ok(())
    } else {
        Err(Outcome::Failed("the notification lost its objects, or could not register".into()))
    }
}

/// Threads come and go, many at a time, each registered by itself, while collections run.
pub fn foreign_threads(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    let lost = AtomicBool::new(false);
    gc.while_collecting(|| {
        std::thread::scope(|scope| {
            for number in 0..8u64 {
                let lost = &lost;
                scope.spawn(move || {
                    if gc.register() {
                        let head = gc.chain(number << 20);
                        gc.collect();
                        if gc.check(head, number << 20, "").is_err() {
                            lost.store(true, Ordering::Relaxed);
                        }
                        gc.unregister();
                    }
                });
            }
        });
        Ok(())
    })?;
    if lost.load(Ordering::Relaxed) {
        return Err(Outcome::Failed("what a thread's stack points to was freed".into()));
    }
    Ok(())
}
