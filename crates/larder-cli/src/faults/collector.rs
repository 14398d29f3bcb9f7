//! The library under test, as a C program sees it: its functions, found by name in a process of their own, and a data
//! structure that shows when something of it was freed too early.

use std::ffi::{CStr, c_int, c_void};
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Outcome;

macro_rules! functions {
    ($($name:ident: $type:ty,)*) => {
        /// The functions of the interface that the lines use.
        #[allow(non_snake_case)]
        #[derive(Clone, Copy)]
        pub struct Collector {
            $(pub $name: $type,)*
        }

        impl Collector {
            fn from_handle(handle: *mut c_void) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: a terminated name, and a handle that dlopen returned.
                        let at = unsafe { libc::dlsym(handle, name.as_ptr().cast()) };
                        if at.is_null() {
                            return Err(format!("libgc.so.1 has no {}", stringify!($name)));
                        }
                        // SAFETY: gc.h declares the function with this type.
                        unsafe { std::mem::transmute::<*mut c_void, $type>(at) }
                    },)*
                })
            }
        }
    };
}

/// What `GC_get_stack_base` fills in.
#[repr(C)]
#[derive(Default)]
pub struct StackBase {
    pub base: usize,
}

functions! {
    GC_init: extern "C" fn(),
    GC_malloc: extern "C" fn(usize) -> *mut c_void,
    GC_gcollect: extern "C" fn(),
    GC_get_gc_no: extern "C" fn() -> usize,
    GC_get_heap_size: extern "C" fn() -> usize,
    GC_set_handle_fork: extern "C" fn(c_int),
    GC_atfork_prepare: extern "C" fn(),
    GC_atfork_parent: extern "C" fn(),
    GC_atfork_child: extern "C" fn(),
    GC_set_max_heap_size: extern "C" fn(usize),
    GC_allow_register_threads: extern "C" fn(),
    GC_get_stack_base: extern "C" fn(*mut StackBase) -> c_int,
    GC_register_my_thread: extern "C" fn(*const StackBase) -> c_int,
    GC_unregister_my_thread: extern "C" fn() -> c_int,
    GC_get_my_stackbottom: extern "C" fn(*mut StackBase) -> *mut c_void,
    GC_set_stackbottom: extern "C" fn(*mut c_void, *const StackBase),
    GC_add_roots: extern "C" fn(*mut c_void, *mut c_void),
    GC_remove_roots: extern "C" fn(*mut c_void, *mut c_void),
    GC_pthread_create: extern "C" fn(*mut libc::pthread_t, *const c_void, extern "C" fn(*mut c_void) -> *mut c_void, *mut c_void) -> c_int,
    GC_pthread_join: extern "C" fn(libc::pthread_t, *mut *mut c_void) -> c_int,
}

/// A node of a chain.
#[repr(C)]
struct Node {
    next: *mut Node,
    value: u64,
    /// The complement of `value`: a node that was given to somebody else, or cleared, does not have both.
    check: u64,
}

/// Nodes of a chain that a line keeps alive.
pub const NODES: u64 = 50;

impl Collector {
    /// Loads the library that the loader's path names, and initialises it.
    pub fn load(fork_handling: c_int) -> Result<Self, String> {
        // SAFETY: a terminated name; the library's constructors are what every client runs.
        let handle = unsafe { libc::dlopen(c"libgc.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            // SAFETY: dlerror returns a terminated text after a failure.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(why.to_string_lossy().into_owned());
        }
        let collector = Self::from_handle(handle)?;
        (collector.GC_set_handle_fork)(fork_handling);
        (collector.GC_init)();
        (collector.GC_allow_register_threads)();
        Ok(collector)
    }

    /// A chain of nodes whose values begin with `seed`; null when memory is exhausted.
    #[inline(never)]
    pub fn chain(&self, seed: u64) -> *mut c_void {
        let mut head: *mut Node = std::ptr::null_mut();
        for i in 0..NODES {
            let node = (self.GC_malloc)(size_of::<Node>()).cast::<Node>();
            if node.is_null() {
                return std::ptr::null_mut();
            }
            // SAFETY: a fresh object of this size.
            unsafe { node.write(Node { next: head, value: seed + i, check: !(seed + i) }) };
            head = node;
        }
        head.cast()
    }

    /// Whether the chain is as it was made.
    #[inline(never)]
    pub fn check(&self, head: *mut c_void, seed: u64, what: &str) -> Result<(), Outcome> {
        let mut node = head.cast::<Node>();
        for i in (0..NODES).rev() {
            // SAFETY: a chain that a line keeps alive; if that failed, what is read is some other object's.
            let found = (!node.is_null()).then(|| unsafe { node.read_volatile() });
            match found {
                Some(found) if found.value == seed + i && found.check == !(seed + i) => node = found.next,
                _ => {
                    return Err(Outcome::Failed(format!("{what} was freed while it was in use (node {i} of {NODES})")));
                }
            }
        }
        if node.is_null() { Ok(()) } else { Err(Outcome::Failed(format!("{what} has no end"))) }
    }

    /// Makes garbage that takes the places of whatever was freed.
    #[inline(never)]
    pub fn churn(&self) {
        for round in 0..6 {
            black_box(self.chain(0xdead_0000 + round));
        }
    }

    /// Collects, and hands freed places out again.
    pub fn collect(&self) {
        (self.GC_gcollect)();
        self.churn();
    }

    /// Registers the calling thread, which the library did not create.
    pub fn register(&self) -> bool {
        let mut base = StackBase::default();
        (self.GC_get_stack_base)(&mut base) == 0 && (self.GC_register_my_thread)(&base) == 0
    }

    /// Takes the calling thread back out.
    pub fn unregister(&self) {
        (self.GC_unregister_my_thread)();
    }

    /// Runs `body` on `threads` threads of the library's, and `main` on this one meanwhile. The first failure is returned.
    pub fn crowd(
        &self,
        threads: usize,
        body: impl Fn(usize) -> Result<(), Outcome> + Sync,
        main: impl FnOnce() -> Result<(), Outcome>,
    ) -> Result<(), Outcome> {
        type Body<'a> = &'a (dyn Fn(usize) -> Result<(), Outcome> + Sync);
        struct Start<'a> {
            body: Body<'a>,
            number: usize,
            result: Result<(), Outcome>,
        }
        extern "C" fn start(start: *mut c_void) -> *mut c_void {
            // SAFETY: `crowd` passes its own record, which outlives the thread, and reads it after the join.
            let start = unsafe { &mut *start.cast::<Start<'_>>() };
            start.result = (start.body)(start.number);
            std::ptr::null_mut()
        }
        let mut starts: Vec<_> = (0..threads).map(|number| Start { body: &body, number, result: Ok(()) }).collect();
        let mut handles = Vec::new();
        let mut refused = 0;
        for start_of in &mut starts {
            let mut handle = 0;
            let argument = std::ptr::from_mut(start_of).cast();
            match (self.GC_pthread_create)(&mut handle, std::ptr::null(), start, argument) {
                0 => handles.push(handle),
                error => refused = error,
            }
        }
        let mut result = main();
        for handle in handles {
            (self.GC_pthread_join)(handle, std::ptr::null_mut());
        }
        if refused != 0 {
            let why = io::Error::from_raw_os_error(refused);
            return Err(Outcome::Failed(format!("a thread could not be created: {why}")));
        }
        for start in starts {
            result = result.and(start.result);
        }
        result
    }

    /// Runs `main` while another thread collects, over and over.
    pub fn while_collecting(&self, main: impl FnOnce() -> Result<(), Outcome>) -> Result<(), Outcome> {
        let done = AtomicBool::new(false);
        self.crowd(
            1,
            |_| {
                while !done.load(Ordering::Relaxed) {
                    self.collect();
                }
                Ok(())
            },
            || {
                let result = main();
                done.store(true, Ordering::Relaxed);
                result
            },
        )
    }
}
