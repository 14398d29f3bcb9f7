//! Threads that do not answer a stop for long: who they are, said once in a while.
//!
//! A thread that has blocked the stop signal cannot be stopped, and a collection cannot do without its stack. So the stop waits for as
//! long as it takes, and says which thread it waits for: the cause is in the program, and its threads have names.

use core::fmt::Write;

use larder_sys::env::read_file;
use larder_sys::report::Line;
use larder_sys::say;
use larder_units::Nanos;

/// How long a stop waits before it says something: far longer than a thread that can run needs on a loaded machine.
const FIRST: Nanos = Nanos(2_000_000_000);
/// Each further line waits this many times as long.
const GROWTH: u64 = 8;

/// When to say something next.
pub(crate) struct Watch(Nanos);

impl Watch {
    /// A stop begins to wait.
    pub(crate) fn new() -> Self {
        Self(FIRST)
    }

    /// Whether it is time, so long after the beginning.
    pub(crate) fn is_time(&mut self, waited: Nanos) -> bool {
        let due = waited >= self.0;
        if due {
            self.0 = Nanos(self.0.0.saturating_mul(GROWTH));
        }
        due
    }
}

/// What follows `key` on its line.
fn value_of<'a>(text: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    text.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(key)).map(<[u8]>::trim_ascii)
}

fn shown(text: &[u8]) -> &str {
    core::str::from_utf8(text).unwrap_or("?")
}

/// What the kernel tells about a thread; nothing where it does not.
fn status_of(tid: i32, buffer: &mut [u8]) -> &[u8] {
    let mut path = Line::new();
    // Cannot fail: the line is longer than the path.
    let _ = write!(path, "/proc/self/task/{tid}/status\0");
    let path = core::ffi::CStr::from_bytes_until_nul(path.as_bytes()).ok();
    path.and_then(|path| read_file(path, buffer)).unwrap_or_default()
}

/// Whether the set of signals that follows `key` holds the signal, where there is one.
fn set_holds(status: &[u8], key: &[u8], signal: i32) -> Option<bool> {
    let set = value_of(status, key).and_then(|set| u64::from_str_radix(shown(set), 16).ok());
    set.map(|set| set >> (signal - 1) & 1 == 1)
}

/// Whether the signal waits for the thread, which blocks it or has not run since. False as well where nobody knows.
pub(crate) fn is_awaited_by(signal: i32, tid: i32) -> bool {
    set_holds(status_of(tid, &mut [0; 4096]), b"SigPnd:", signal) == Some(true)
}

/// Says which thread a stop waits for, and why, as far as the kernel tells.
pub(crate) fn report(tid: i32, signal: i32, waited: Nanos) {
    let mut buffer = [0; 4096];
    let status = status_of(tid, &mut buffer);
    let name = value_of(status, b"Name:").map_or("?", shown);
    let seconds = waited.0 / 1_000_000_000;
    match set_holds(status, b"SigBlk:", signal) {
        Some(true) => say!(
            "a collection has waited {seconds} s for thread {tid} ({name}), which blocks signal {signal}; it goes on when the \
             thread unblocks it: use GC_pthread_sigmask, GC_do_blocking, or `larder run`"
        ),
        Some(false) => say!(
            "a collection has waited {seconds} s for thread {tid} ({name}), which does not run (state {})",
            value_of(status, b"State:").map_or("?", shown)
        ),
        None => say!("a collection has waited {seconds} s for thread {tid}; it may block signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_status_are_found() {
        let status = b"Name:\tworker\nState:\tS (sleeping)\nSigBlk:\t0000000020000000\n";
        assert_eq!(value_of(status, b"Name:"), Some(&b"worker"[..]));
        assert_eq!(value_of(status, b"SigBlk:"), Some(&b"0000000020000000"[..]));
        assert_eq!(value_of(status, b"SigCgt:"), None);
        assert_eq!(set_holds(status, b"SigBlk:", 30), Some(true));
        assert_eq!(set_holds(status, b"SigBlk:", 29), Some(false));
        assert_eq!(set_holds(status, b"SigPnd:", 30), None);
    }

    #[test]
    fn lines_become_rarer() {
        let mut watch = Watch::new();
        let said = (0..300).filter(|second| watch.is_time(Nanos(second * 1_000_000_000))).count();
        assert_eq!(said, 3);
    }
}
