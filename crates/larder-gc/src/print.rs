//! Text for people: `GC_printf` and its relatives, warnings, and the log.
//!
//! Everything goes to standard error, or to the log file where one was asked for; never to standard output, where libgc
//! prints its dumps. Formatting is the C library's, into a buffer on the stack of the size that libgc uses.
//!
//! A variadic function cannot be written in stable Rust. The three that libgc exports are a few instructions each
//! that lay out the caller's arguments as the ABI's `va_list` and pass its address on.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_void};

use larder_sys::report::write_all;

use crate::data::Int;

/// Where the log goes.
static LOG: Int = Int::new(2);
/// Where errors and warnings go.
static ERRORS: Int = Int::new(2);

/// The longest text that is printed at once; libgc stops the program at a longer one, here it is cut.
const LONGEST: usize = 1024;

unsafe extern "C" {
    fn vsnprintf(into: *mut c_char, size: usize, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// Sends the log to `fd`, and errors with it where `errors_too`.
pub fn set_log(fd: c_int, errors_too: bool) {
    LOG.set(fd);
    if errors_too {
        ERRORS.set(fd);
    }
}

/// Writes to where errors go.
pub fn error(text: &CStr) {
    write_all(ERRORS.get(), text.to_bytes());
}

/// Writes to the log.
pub fn log(text: &[u8]) {
    write_all(LOG.get(), text);
}

/// Writes bytes to where errors go.
pub fn error_bytes(text: &[u8]) {
    write_all(ERRORS.get(), text);
}

/// Writes a line to where errors go. Takes `format!` arguments.
#[macro_export]
macro_rules! error_line {
    ($($argument:tt)*) => {{
        let mut line = larder_sys::report::Line::new();
        let _ = core::fmt::Write::write_fmt(&mut line, format_args!($($argument)*));
        let _ = core::fmt::Write::write_str(&mut line, "\n");
        $crate::print::error_bytes(line.as_bytes());
    }};
}

/// Text from a program, shown as it is where it is UTF-8.
pub struct Text(pub *const c_char);

impl core::fmt::Display for Text {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.0.is_null() {
            return f.write_str("unknown");
        }
        // SAFETY: whoever makes a `Text` has null or a C string.
        let bytes = unsafe { CStr::from_ptr(self.0) }.to_bytes();
        bytes.utf8_chunks().try_for_each(|chunk| f.write_str(chunk.valid()))
    }
}

/// Writes to the log. Takes `format!` arguments.
#[macro_export]
macro_rules! log_line {
    ($($argument:tt)*) => {{
        let mut line = larder_sys::report::Line::new();
        let _ = core::fmt::Write::write_fmt(&mut line, format_args!($($argument)*));
        let _ = core::fmt::Write::write_str(&mut line, "\n");
        $crate::print::log(line.as_bytes());
    }};
}

/// The first warning function: prints the message.
pub unsafe extern "C" fn print_warning(format: *mut c_char, argument: usize) {
    let mut buffer = [0; LONGEST];
    // SAFETY: the buffer is as long as said; a warning's format takes one word.
    let n = unsafe { libc::snprintf(buffer.as_mut_ptr().cast(), LONGEST, format, argument) };
    write_all(ERRORS.get(), written(&buffer, n));
}

/// What `snprintf` left in the buffer, without the final zero.
fn written(buffer: &[u8; LONGEST], n: c_int) -> &[u8] {
    &buffer[..usize::try_from(n).unwrap_or(0).min(LONGEST - 1)]
}

/// A warning function that prints only where statistics are printed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_ignore_warn_proc(format: *mut c_char, argument: usize) {
    if crate::progress::is_on() {
        // SAFETY: passed on as they came.
        unsafe { print_warning(format, argument) }
    }
}

/// Sends the log to a file descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_log_fd(fd: c_int) {
    LOG.set(fd);
}

/// Formats the arguments and writes them to `fd`.
///
/// # Safety
/// `format` is a C string and `arguments` the address of a `va_list` that agrees with it.
unsafe fn print_to(fd: c_int, format: *const c_char, arguments: *mut c_void) {
    let mut buffer = [0; LONGEST];
    // SAFETY: the buffer is as long as said, the rest is the caller's promise. On x86-64 a `va_list` is passed as the
    // address of its one element.
    let n = unsafe { vsnprintf(buffer.as_mut_ptr().cast(), LONGEST, format, arguments) };
    write_all(fd, written(&buffer, n));
}

unsafe extern "C" fn print_error(format: *const c_char, arguments: *mut c_void) {
    // SAFETY: called by the functions below with the caller's format and arguments.
    unsafe { print_to(ERRORS.get(), format, arguments) }
}

unsafe extern "C" fn print_log(format: *const c_char, arguments: *mut c_void) {
    // SAFETY: called by the functions below with the caller's format and arguments.
    unsafe { print_to(LOG.get(), format, arguments) }
}

macro_rules! variadic {
    ($(#[$doc:meta])* $name:ident => $target:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            // The frame, upwards from rsp: the va_list (gp_offset, fp_offset, overflow_arg_area, reg_save_area: 24
            // bytes, 32 with padding), the register save area (six words, eight vectors: 176 bytes), 8 bytes that
            // align the call.
            naked_asm!(
                ".cfi_startproc",
                "sub rsp, 216",
                ".cfi_adjust_cfa_offset 216",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                // The format has used the first of the six integer registers.
                "mov dword ptr [rsp], 8",
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                "mov rsi, rsp",
                "call {target}",
                "add rsp, 216",
                ".cfi_adjust_cfa_offset -216",
                "ret",
                ".cfi_endproc",
                target = sym $target,
            )
        }
    };
}

variadic! {
    /// Prints as `printf` does, to the log.
    GC_printf => print_log
}
variadic! {
    /// Prints as `printf` does, to where errors go.
    GC_err_printf => print_error
}
variadic! {
    /// Prints as `printf` does, to the log.
    GC_log_printf => print_log
}
