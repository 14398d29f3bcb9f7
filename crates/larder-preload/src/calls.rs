//! Calls that may block and run no code of the program while they do: each is a stub of two instructions that goes to one
//! trampoline, which wraps the C library's function into a blocking region.
//!
//! The trampoline knows no signatures. All of these but one take at most six words and return one, so it keeps the six argument
//! registers, whoever they hold, and passes them on. It pushes them and the registers that a callee preserves, and publishes
//! the stack pointer: so an object whose only reference is an argument, or a register of the caller, is found.
//!
//! A thread that is cancelled in a call is unwound from inside it, and then runs the client's cleanup. The trampoline's frame
//! has a personality routine for that, which the unwinder calls when it leaves the frame: nothing is paid for it in calls
//! that are not cancelled.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::mem::offset_of;

use larder_threads::interposed::Table;

use crate::masks::{bits_without_stop_signal, without_stop_signal};
use crate::runtime::{Next, keeping_arguments, larder_preload_5, look_up, table};

/// Declares stubs that go to the trampoline, and the C library's functions behind them.
macro_rules! interpose {
    ($($version:expr => { $($name:ident)* })*) => {
        #[allow(non_upper_case_globals, reason = "named like the functions")]
        pub mod next {
            use crate::runtime::Next;
            $($(
                pub static $name: Next = Next::of(concat!(stringify!($name), "\0"), $version);
            )*)*
        }
        /// All of them.
        pub const ALL: &[&Next] = &[&RECVFROM_CHECKED, $($(&next::$name),*),*];
        $($(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                naked_asm!("lea r11, [rip + {next}]", "jmp {blocked}", next = sym next::$name, blocked = sym blocked)
            }
        )*)*
    };
}

interpose! {
    None => {
        // Files, pipes and terminals.
        read __read __read_chk pread pread64 __pread64 __pread_chk __pread64_chk readv preadv preadv64 preadv2 preadv64v2
        write __write pwrite pwrite64 __pwrite64 writev pwritev pwritev64 pwritev2 pwritev64v2
        open __open open64 __open64 openat openat64 __open_2 __open64_2 __openat_2 __openat64_2 creat creat64
        fsync fdatasync syncfs sync msync tcdrain ioctl
        flock lockf lockf64 fcntl __fcntl fcntl64
        splice tee vmsplice sendfile sendfile64 copy_file_range
        // Waiting for several.
        poll __poll __poll_chk select __select epoll_wait
        eventfd_read eventfd_write
        // Sockets.
        accept accept4 connect __connect recv __recv_chk recvfrom recvmsg recvmmsg
        send __send sendto sendmsg sendmmsg
        // Time and signals.
        nanosleep __nanosleep clock_nanosleep usleep sleep thrd_sleep
        pause __xpg_sigpause
        // Threads.
        pthread_join pthread_timedjoin_np pthread_clockjoin_np thrd_join
        pthread_barrier_wait pthread_cond_clockwait cnd_wait cnd_timedwait
        pthread_mutex_timedlock pthread_mutex_clocklock mtx_lock mtx_timedlock
        pthread_rwlock_timedrdlock pthread_rwlock_timedwrlock pthread_rwlock_clockrdlock pthread_rwlock_clockwrlock
        sem_wait sem_timedwait sem_clockwait
        // Processes.
        wait __wait waitpid __waitpid wait3 wait4 waitid system
        // Messages and semaphores of System V, message queues of POSIX.
        msgrcv msgsnd semop semtimedop mq_receive mq_timedreceive mq_send mq_timedsend aio_suspend aio_suspend64 gai_suspend
        // The C library makes a thread of its own in these, with all signals blocked: a lock of the loader's that it waits for then may be held by a
        // thread that was stopped.
        aio_read aio_read64 aio_write aio_write64 aio_fsync aio_fsync64 mq_notify getaddrinfo_a
    }
    // Older programs, of before 2003, had condition variables of another layout, under version GLIBC_2.2.5.
    Some(c"GLIBC_2.3.2") => { pthread_cond_wait pthread_cond_timedwait }
    // And timers that were numbers, lists of requests that told of each, and children that were given to the shell where they were no programs.
    Some(c"GLIBC_2.3.3") => { timer_create }
    Some(c"GLIBC_2.4") => { lio_listio lio_listio64 }
    Some(c"GLIBC_2.15") => { posix_spawn posix_spawnp }
}

/// Declares stubs of calls that take a set of signals, in the register given: the trampoline is called with what `$own` makes of it, which is without
/// the stop signal. `sigwait` for it would take a stop away from the thread; and a handler that runs in a call which masks it is a mutator that
/// cannot be stopped.
macro_rules! interpose_without_stop_signal {
    ($($set:literal by $own:ident: $($name:ident)*;)*) => {
        #[allow(non_upper_case_globals, reason = "named like the functions")]
        mod next_with_set {
            use crate::runtime::Next;
            $($(pub static $name: Next = Next::of(concat!(stringify!($name), "\0"), None);)*)*
        }
        /// All of them.
        pub const ALL_WITH_SET: &[&Next] = &[$($(&next_with_set::$name),*),*];
        $($(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    ".cfi_startproc",
                    // Room for a set; the stack is aligned for calls then.
                    "sub rsp, {room}",
                    ".cfi_adjust_cfa_offset {room}",
                    keeping_arguments!("mov rdi, ", $set, "\n lea rsi, [rsp + 48]\n call {own_set}"),
                    concat!("mov ", $set, ", rax"),
                    "lea r11, [rip + {next}]",
                    "call {blocked}",
                    "add rsp, {room}",
                    ".cfi_adjust_cfa_offset -{room}",
                    "ret",
                    ".cfi_endproc",
                    room = const size_of::<libc::sigset_t>() + 8,
                    own_set = sym $own,
                    next = sym next_with_set::$name,
                    blocked = sym blocked,
                )
            }
        )*)*
    };
}

const _: () = assert!(size_of::<libc::sigset_t>().is_multiple_of(16));

interpose_without_stop_signal! {
    "rdi" by own_set: sigwait sigwaitinfo sigtimedwait sigsuspend __sigsuspend;
    "rcx" by own_set: ppoll __ppoll_chk;
    "r8" by own_set: epoll_pwait epoll_pwait2;
    "r9" by own_set: pselect;
    "rdi" by own_bits: sigpause;
}

/// What a call gets for a client's set: `copy` without the stop signal, or null for null.
unsafe extern "C" fn own_set(set: *const libc::sigset_t, copy: *mut libc::sigset_t) -> *const libc::sigset_t {
    // SAFETY: the caller of the function promises a set or null; the stub has room for the copy.
    unsafe {
        if set.is_null() {
            return set;
        }
        *copy = without_stop_signal(*set);
    }
    copy
}

/// The same for BSD's masks, which are passed by value.
extern "C" fn own_bits(mask: usize, _: *mut libc::sigset_t) -> usize {
    // A mask is an int.
    bits_without_stop_signal(mask as c_int) as u32 as usize
}

/// BSD's `sigpause` or System V's, as the second argument says.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn __sigpause() {
    naked_asm!("test esi, esi", "jz {of_bsd}", "jmp {of_system_v}", of_bsd = sym sigpause, of_system_v = sym __xpg_sigpause)
}

/// The C library's own, which ends the process where a buffer is too small.
static RECVFROM_CHECKED: Next = Next::new(c"__recvfrom_chk", None);

/// The one call with seven arguments, the fourth of which says how long the buffer is. Where that is enough, it is [`next::recvfrom`]'s six.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn __recvfrom_chk() {
    naked_asm!(
        "cmp rdx, rcx",
        "ja 2f",
        "mov ecx, r8d",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "lea r11, [rip + {next}]",
        "jmp {blocked}",
        "2:",
        "lea r11, [rip + {checked}]",
        "jmp {blocked}",
        next = sym next::recvfrom,
        checked = sym RECVFROM_CHECKED,
        blocked = sym blocked,
    )
}

/// Calls the function whose [`Next`] is in `r11`, with the caller's arguments, in a blocking region if the thread may be in
/// one.
///
/// # Safety
/// Only to be jumped to, with the registers and the stack of a call of that function.
#[unsafe(naked)]
pub unsafe extern "C" fn blocked() {
    naked_asm!(
        ".cfi_startproc",
        // Relative to the program counter, in four bytes.
        ".cfi_personality 0x1b, {personality}",
        "mov rax, [r11]",
        "test rax, rax",
        "jz 3f",
        "2:",
        "mov r10, [rip + {anchor}@GOTPCREL]",
        "mov r10, [r10]",
        "test r10, r10",
        "jz 4f",
        ".cfi_remember_state",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbx, 0",
        "push r12",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r12, 0",
        "push r13",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r13, 0",
        "push r14",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r14, 0",
        "push r15",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r15, 0",
        "push r9",
        ".cfi_adjust_cfa_offset 8",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        "push rcx",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        // The return address and thirteen words: the stack is aligned for calls.
        "push rax",
        ".cfi_adjust_cfa_offset 8",
        "mov rbx, r10",
        "mov rdi, rsp",
        "call [rbx + {enter}]",
        "mov r12, rax",
        "mov rdi, [rsp + 8]",
        "mov rsi, [rsp + 16]",
        "mov rdx, [rsp + 24]",
        "mov rcx, [rsp + 32]",
        "mov r8, [rsp + 40]",
        "mov r9, [rsp + 48]",
        // Of functions that take any number of arguments, none takes floating-point ones.
        "xor eax, eax",
        "call [rsp]",
        "test r12, r12",
        "jz 5f",
        "mov r13, rax",
        "call [rbx + {leave}]",
        "mov rax, r13",
        "5:",
        "add rsp, 56",
        ".cfi_adjust_cfa_offset -56",
        "pop r15",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r15",
        "pop r14",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r14",
        "pop r13",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r13",
        "pop r12",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r12",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbx",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_restore_state",
        // No runtime.
        "4:",
        "jmp rax",
        // Not looked up yet.
        "3:",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        keeping_arguments!("mov rdi, r11\n call {look_up}"),
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "jmp 2b",
        ".cfi_endproc",
        personality = sym personality,
        anchor = sym larder_preload_5,
        enter = const offset_of!(Table, enter),
        leave = const offset_of!(Table, leave),
        look_up = sym look_up,
    )
}

/// What the unwinder asks when it comes to the trampoline's frame. There is nothing to catch and nothing to clean up in the
/// frame; but with it the region ends, before frames further out do their cleanup.
extern "C" fn personality(_: c_int, actions: c_int, _: u64, _: *mut c_void, _: *mut c_void) -> c_int {
    const CLEANUP_PHASE: c_int = 2;
    const CONTINUE: c_int = 8;
    if actions & CLEANUP_PHASE != 0
        && let Some(table) = table()
    {
        (table.unwound)();
    }
    CONTINUE
}
