//! Signal handlers: each is installed inside a wrapper that makes it a mutator, wherever the signal finds the thread.
//!
//! The kernel knows the wrapper, programs see their own handlers. There are [`PLACES`] wrappers, and for each signal as many
//! places for the handlers behind them. A new handler gets the place after the last one, but not that of the handler that is installed: so a
//! signal that was delivered under the old action still finds the old handler, the kernel alone decides from when on the new one counts, and
//! what it says was installed before can be told.
//! No lock is taken: `sigaction` is called in handlers, and after forks.

use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use larder_sys::signal::handling;
use larder_threads::interposed::Table;

use crate::runtime::{Next, table};

/// Handlers of one signal that are remembered at a time.
const PLACES: usize = 4;
/// Signals are numbered from 1.
const SIGNALS: usize = 65;

struct Places {
    /// The handlers. Sync: a place is written before the kernel learns of its wrapper.
    handlers: [AtomicUsize; PLACES],
    /// The place for the next handler. Sync: a ticket.
    next: AtomicU32,
}

static HANDLERS: [Places; SIGNALS] =
    [const { Places { handlers: [const { AtomicUsize::new(0) }; PLACES], next: AtomicU32::new(0) } }; SIGNALS];

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// What the kernel calls for place `PLACE`, by [`WRAPPERS`].
extern "C" fn run<const PLACE: usize>(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let handler = HANDLERS[signal as usize].handlers[PLACE].load(Ordering::Relaxed);
    // SAFETY: the place was filled with a client's handler before the kernel learned of this wrapper.
    let handler = unsafe { transmute::<usize, Handler>(handler) };
    let Some(table) = table() else { return handler(signal, info, context) };
    // SAFETY: on x86-64 the kernel passes a context to every handler, whether it was asked for or not.
    let (low, high, disarmed) = unsafe { alternate_stack(&*context.cast::<libc::ucontext_t>()) };
    let region = (table.handler_begins)(low, high, usize::from(disarmed));
    handler(signal, info, context);
    (table.handler_ends)(region);
}

larder_sys::handler!(fn wrapper_0 => run::<0>);
larder_sys::handler!(fn wrapper_1 => run::<1>);
larder_sys::handler!(fn wrapper_2 => run::<2>);
larder_sys::handler!(fn wrapper_3 => run::<3>);
static WRAPPERS: [Handler; PLACES] = [wrapper_0, wrapper_1, wrapper_2, wrapper_3];

/// The kernel takes such a stack back while a handler runs on it. (Linux 4.7; the C library has no name for it.)
const SS_AUTODISARM: c_int = c_int::MIN;

/// The alternate stack that the calling handler runs on, and whether it is disarmed; or an empty range. A handler that interrupts one on a disarmed
/// stack gets an empty range, and runs there as well.
fn alternate_stack(context: &libc::ucontext_t) -> (usize, usize, bool) {
    let low = context.uc_stack.ss_sp.addr();
    let high = low + context.uc_stack.ss_size;
    let here = larder_sys::thread::stack_pointer().addr();
    let disarmed = context.uc_stack.ss_flags & SS_AUTODISARM != 0;
    if (low..high).contains(&here) { (low, high, disarmed) } else { (0, 0, false) }
}

/// Which wrapper it is, if it is one.
fn place_of(wrapper: usize) -> Option<usize> {
    WRAPPERS.iter().position(|known| *known as usize == wrapper)
}

/// The wrapper for a handler; what needs none is itself, as a wrapper is that was read from the kernel. `installed` says what the signal has now.
fn wrapped(signal: c_int, handler: usize, installed: impl FnOnce() -> usize) -> usize {
    let ours = table().is_some_and(|table| table.stop_handler as usize == handler);
    let Some(places) = HANDLERS.get(signal as usize) else { return handler };
    if ours
        || matches!(handler, libc::SIG_DFL | libc::SIG_IGN | libc::SIG_ERR)
        || handler == SIG_HOLD
        || place_of(handler).is_some()
    {
        return handler;
    }
    let known = places.handlers.iter().position(|place| place.load(Ordering::Relaxed) == handler);
    let place = known.unwrap_or_else(|| {
        let next = || places.next.fetch_add(1, Ordering::Relaxed) as usize % PLACES;
        let (place, installed) = (next(), place_of(installed()));
        let place = if installed == Some(place) { next() } else { place };
        places.handlers[place].store(handler, Ordering::Relaxed);
        place
    });
    WRAPPERS[place] as usize
}

/// The handler behind a wrapper; what is none is itself.
fn unwrapped(signal: c_int, handler: usize) -> usize {
    match (place_of(handler), HANDLERS.get(signal as usize)) {
        (Some(place), Some(places)) => places.handlers[place].load(Ordering::Relaxed),
        _ => handler,
    }
}

/// What `sigset` takes for "block the signal".
const SIG_HOLD: usize = 2;

type Action = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Install = unsafe extern "C" fn(c_int, usize) -> usize;

/// The runtime's table, if it keeps what handles this signal: it is the one that stops threads, and who asks is the client.
fn table_for(signal: c_int, handler: Option<usize>) -> Option<&'static Table> {
    table().filter(|table| (table.stop_signal)() == signal && handler != Some(table.stop_handler as usize))
}

/// What the client has installed for that signal, of which the kernel does not know.
fn installed_for_stop_signal(table: &Table) -> usize {
    // SAFETY: zeroes are an action with an empty mask.
    let mut installed = unsafe { core::mem::zeroed::<libc::sigaction>() };
    (table.handle_stop_signal)(ptr::null(), &mut installed);
    installed.sa_sigaction
}

unsafe fn install_action(next: &Next, signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller's promise, which is that of sigaction; a copy differs in the handler and its mask only.
    unsafe {
        let action = transmute::<usize, Action>(next.address());
        let mut own = new.as_ref().copied();
        if let Some(table) = table_for(signal, own.map(|own| own.sa_sigaction)) {
            if let Some(own) = &mut own {
                own.sa_sigaction = wrapped(signal, own.sa_sigaction, || installed_for_stop_signal(table));
            }
            (table.handle_stop_signal)(own.as_ref().map_or(ptr::null(), ptr::from_ref), old);
            if let Some(old) = old.as_mut() {
                old.sa_sigaction = unwrapped(signal, old.sa_sigaction);
            }
            return 0;
        }
        if let Some(own) = &mut own {
            let handler = wrapped(signal, own.sa_sigaction, || handling(signal).handler);
            if let Some(table) = table()
                && handler != own.sa_sigaction
                && table.fault_handler as usize != own.sa_sigaction
            {
                // A handler that waits for a lock of the runtime must be stopped there.
                libc::sigdelset(&mut own.sa_mask, (table.stop_signal)());
            }
            own.sa_sigaction = handler;
        }
        let result = action(signal, own.as_ref().map_or(ptr::null(), ptr::from_ref), old);
        if result == 0
            && let Some(old) = old.as_mut()
        {
            old.sa_sigaction = unwrapped(signal, old.sa_sigaction);
        }
        result
    }
}

unsafe fn install_handler(next: &Next, signal: c_int, handler: usize) -> usize {
    if let Some(table) = table_for(signal, Some(handler)) {
        // SAFETY: zeroes are an action with an empty mask.
        let (mut new, mut old) =
            unsafe { (core::mem::zeroed::<libc::sigaction>(), core::mem::zeroed::<libc::sigaction>()) };
        new.sa_sigaction = wrapped(signal, handler, || installed_for_stop_signal(table));
        // The stop signal stays open, as in `masks`.
        let new = if handler == SIG_HOLD { ptr::null() } else { ptr::from_ref(&new) };
        (table.handle_stop_signal)(new, &mut old);
        return unwrapped(signal, old.sa_sigaction);
    }
    let handler = wrapped(signal, handler, || handling(signal).handler);
    // SAFETY: the caller's promise, which is that of signal.
    let old = unsafe { transmute::<usize, Install>(next.address())(signal, handler) };
    unwrapped(signal, old)
}

macro_rules! installers {
    (like sigaction { $($action:ident $action_name:literal $action_next:ident;)* }
     like signal { $($install:ident $install_name:literal $install_next:ident;)* }) => {
        $(
            static $action_next: Next = Next::new($action_name, None);
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $action(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { install_action(&$action_next, signal, new, old) }
            }
        )*
        $(
            static $install_next: Next = Next::new($install_name, None);
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $install(signal: c_int, handler: usize) -> usize {
                // SAFETY: the caller's promise.
                unsafe { install_handler(&$install_next, signal, handler) }
            }
        )*
        /// The C library's functions.
        pub const ALL: &[&Next] = &[$(&$action_next,)* $(&$install_next),*];
    };
}

installers! {
    like sigaction {
        sigaction c"sigaction" SIGACTION;
        __sigaction c"__sigaction" SIGACTION_2;
    }
    like signal {
        signal c"signal" SIGNAL;
        bsd_signal c"bsd_signal" BSD_SIGNAL;
        ssignal c"ssignal" SSIGNAL;
        sysv_signal c"sysv_signal" SYSV_SIGNAL;
        __sysv_signal c"__sysv_signal" SYSV_SIGNAL_2;
        sigset c"sigset" SIGSET;
    }
}
