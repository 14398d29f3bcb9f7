//! The calling thread: its id, its stack, its thread pointer.

use core::arch::{asm, naked_asm};

use larder_units::PAGE;

/// The kernel's id of the calling thread: a system call.
pub fn tid() -> i32 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// The process id: a system call.
pub fn pid() -> i32 {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}

/// How many threads the process has, `None` where `/proc` does not say.
pub fn count() -> Option<usize> {
    // SAFETY: a C string, and a record that the call fills in.
    let links = unsafe {
        let mut record: libc::stat = core::mem::zeroed();
        if libc::stat(c"/proc/self/task".as_ptr(), &mut record) != 0 {
            return None;
        }
        record.st_nlink as usize
    };
    // A folder has two links, and one more for each folder in it.
    links.checked_sub(2)
}

/// Gives the CPU to another thread.
pub fn yield_now() {
    // SAFETY: no preconditions.
    unsafe { libc::sched_yield() };
}

/// Sleeps for at least so long, unless a handler runs. Not by a call of the C library, which a program may have replaced.
pub fn sleep(time: larder_units::Nanos) {
    let time = libc::timespec { tv_sec: (time.0 / 1_000_000_000) as i64, tv_nsec: (time.0 % 1_000_000_000) as i64 };
    // SAFETY: the time is whole, and nobody asks for the rest.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, core::ptr::null_mut::<libc::timespec>()) };
}

/// The thread pointer: the address of the thread control block.
#[inline(always)]
pub fn thread_pointer() -> *mut u8 {
    let tp: *mut u8;
    // SAFETY: on x86-64 Linux the word at fs:0 is the address of the control block itself.
    unsafe { asm!("mov {}, qword ptr fs:[0]", out(reg) tp, options(nostack, readonly, preserves_flags)) };
    tp
}

/// The present stack pointer, or a little below.
#[inline(always)]
pub fn stack_pointer() -> *mut u8 {
    let sp: *mut u8;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

/// Spills the callee-saved registers to the stack and calls `f(stack_pointer, argument)`: everything that the caller
/// held in registers lies at or above the pointer that `f` gets, until `f` returns. An exception passes.
#[unsafe(naked)]
pub extern "C" fn with_spilled_registers(f: extern "C" fn(*mut u8, *mut u8), argument: *mut u8) {
    // The return address and six registers are 56 bytes; eight more align the stack for the call.
    naked_asm!(
        ".cfi_startproc",
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
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rax, rdi",
        "mov rdi, rsp",
        "call rax",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
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
        ".cfi_endproc",
    )
}

/// How far below its caller's frame [`clear_dead_frames`] writes zeroes, in words.
const DEAD_WORDS: usize = 320;

/// Overwrites the dead part of the stack next to the caller's frame: what frames that are gone have left there would be found
/// again in frames to come, which do not write all of their words before a conservative marker reads them.
#[unsafe(naked)]
pub extern "C" fn clear_dead_frames() {
    // The caller is not a leaf, so nothing of its own lies below the return address.
    naked_asm!(
        ".cfi_startproc",
        "mov ecx, {words}",
        "lea rdi, [rsp - 8 * {words}]",
        "xor eax, eax",
        "rep stosq",
        "ret",
        ".cfi_endproc",
        words = const DEAD_WORDS,
    )
}

/// As [`clear_dead_frames`], the nearest 1024 bytes only, in some 10 ns.
#[unsafe(naked)]
pub extern "C" fn clear_nearest_dead_frames() {
    naked_asm!(
        ".cfi_startproc",
        "xorps xmm0, xmm0",
        "lea rax, [rsp - 1024]",
        "2:",
        "movups [rax], xmm0",
        "movups [rax + 16], xmm0",
        "movups [rax + 32], xmm0",
        "movups [rax + 48], xmm0",
        "add rax, 64",
        "cmp rax, rsp",
        "jne 2b",
        "ret",
        ".cfi_endproc",
    )
}

unsafe extern "C" {
    static __libc_stack_end: *mut u8;
}

/// Where the main thread's stack begins: one past the page in which the kernel left the program's arguments and environment, behind the highest address that a
/// frame of `main` can use. Programs put objects in the places of those, and the C library counts the page in (`pthread_getattr_np`), too.
pub fn main_stack_base() -> *mut u8 {
    // SAFETY: the loader sets it once, before any code of the program runs.
    let end = unsafe { __libc_stack_end };
    end.map_addr(|address| (address & !(PAGE.0 - 1)) + PAGE.0)
}

/// The kernel lays out no mapping nearer below the beginning of the main thread's stack, however low the limit of its size is.
const FREE: usize = 128 << 20;

/// Where the calling thread's stack begins. `None` where the C library does not know.
///
/// Asks the C library, which may use malloc, but for the main thread on its own stack: there it would read `/proc/self/maps`. (The only thread of a child of fork
/// has the number of a main thread, and may have another stack.)
pub fn stack_base() -> Option<*mut u8> {
    let depth = main_stack_base().addr().wrapping_sub(stack_pointer().addr());
    if depth < FREE && tid() == pid() { Some(main_stack_base()) } else { stack_bounds().map(|(_, base)| base) }
}

/// How far down the main thread's stack, on which the caller runs, may grow: as far as its limit lets it, and not among the mappings below it.
///
/// Asks the C library, which may use malloc and reads `/proc/self/maps`, where the limit is so high that mappings may lie nearer: it counts as it was when the
/// program began, and a program may have raised it since.
pub fn main_stack_limit() -> *mut u8 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the record.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) } == 0;
    let below_base = |size| main_stack_base().map_addr(|base| base.saturating_sub(size));
    match usize::try_from(limit.rlim_cur) {
        Ok(size) if known && size <= FREE => below_base(size),
        _ => stack_bounds().map_or_else(|| below_base(FREE), |(low, _)| low),
    }
}

/// The bounds of the calling thread's stack mapping, `(lowest, one past the highest)`.
///
/// Asks the C library, which may use malloc: not for signal handlers or stopped worlds.
pub fn stack_bounds() -> Option<(*mut u8, *mut u8)> {
    // SAFETY: the attribute object is initialised by pthread_getattr_np and destroyed here.
    unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
            return None;
        }
        let mut at = core::ptr::null_mut();
        let mut size = 0;
        let r = libc::pthread_attr_getstack(&attributes, &mut at, &mut size);
        libc::pthread_attr_destroy(&mut attributes);
        (r == 0).then(|| (at.cast(), at.cast::<u8>().add(size)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted() {
        // Others run beside this test, and come and go.
        let own = count();
        assert!(own.is_none_or(|own| own >= 1));
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || _ = wait.recv());
        assert!(count().is_none_or(|all| all >= 2));
        drop(go);
        other.join().expect("a thread that waits");
    }

    extern "C" fn look_for(sp: *mut u8, secret: *mut u8) {
        // SAFETY: reads this thread's own stack upward from the spilled registers.
        let found = (0..64).any(|i| unsafe { sp.cast::<usize>().add(i).read_volatile() } == secret.addr());
        assert!(found);
    }

    #[inline(never)]
    fn leave(secret: usize) -> usize {
        let mut words = [0usize; 64];
        core::hint::black_box(&mut words).fill(secret);
        core::hint::black_box(&words).as_ptr().addr()
    }

    #[test]
    fn what_dead_frames_left_is_gone() {
        let secret = 0x1234_5678_9abc_def0usize;
        let at = leave(secret);
        clear_dead_frames();
        let found: usize = (0..64)
            // SAFETY: this thread's own stack, where a frame was.
            .filter(|i| unsafe { core::ptr::with_exposed_provenance::<usize>(at + 8 * i).read_volatile() } == secret)
            .count();
        assert_eq!(found, 0);
    }

    #[test]
    fn callee_saved_registers_are_spilled_where_the_callee_can_see_them() {
        let secret = 0x1234_5678_9abc_def0usize;
        // SAFETY: loads a callee-saved register, calls with an aligned stack (one push, one call), and declares both.
        unsafe {
            asm!(
                "push r13",
                "push r13",
                "mov r13, rsi",
                "call {w}",
                "pop r13",
                "pop r13",
                w = sym with_spilled_registers,
                in("rdi") look_for as *const u8,
                in("rsi") secret,
                clobber_abi("C"),
            );
        }
    }
}
