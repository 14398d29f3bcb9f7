//! Lines on standard error, written without allocating and without stdio, so that they are safe while threads are
//! stopped and inside signal handlers. Nothing here ever writes to standard output.

use core::fmt::{self, Write};

/// A line under construction: fixed size, cut off silently at its end.
pub struct Line {
    bytes: [u8; 512],
    used: usize,
}

impl Line {
    /// An empty line.
    pub const fn new() -> Self {
        Self { bytes: [0; 512], used: 0 }
    }

    /// What has been written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.bytes.len() - self.used;
        let taken = s.len().min(room);
        self.bytes[self.used..self.used + taken].copy_from_slice(&s.as_bytes()[..taken]);
        self.used += taken;
        Ok(())
    }
}

/// Writes `bytes` to the file descriptor, as far as that works.
pub fn write_all(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the pointer and the length describe `bytes`.
        let n = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        if n <= 0 {
            return;
        }
        bytes = &bytes[n as usize..];
    }
}

/// Writes `larder: MESSAGE` and a newline to standard error.
pub fn say(message: fmt::Arguments<'_>) {
    let mut line = Line::new();
    let _ = writeln!(line, "larder: {message}");
    write_all(2, line.as_bytes());
}

/// Writes the message to standard error and aborts the process.
pub fn die(message: fmt::Arguments<'_>) -> ! {
    say(message);
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}

/// Stops the process with one line on standard error. Takes `format!` arguments.
#[macro_export]
macro_rules! die {
    ($($arg:tt)*) => { $crate::report::die(format_args!($($arg)*)) };
}

/// Writes one line on standard error. Takes `format!` arguments.
#[macro_export]
macro_rules! say {
    ($($arg:tt)*) => { $crate::report::say(format_args!($($arg)*)) };
}
