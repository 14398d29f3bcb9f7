//! Where a process puts its events file.

use core::ffi::CStr;

/// Environment variable with the folder for events files; without it a process writes none.
pub const DIRECTORY_VARIABLE: &CStr = c"LARDER_EVENTS_DIR";

/// How the name of every events file ends.
pub const FILE_SUFFIX: &str = ".larder";

/// Writes the path of a process's events file into `out`, or returns `None` where it does not fit.
///
/// The first attempt is `DIR/PID.larder`. A process that replaced itself by exec finds its own earlier file there, so
/// files are created exclusively, and the next attempt is `DIR/PID-1.larder`. A fork child is a process of its own: it
/// unmaps what it inherited and creates its file.
///
/// ```
/// let mut space = [0; 64];
/// let path = larder_events::event_path(b"/tmp/events", 42, 0, &mut space).unwrap();
/// assert_eq!(path, c"/tmp/events/42.larder");
/// ```
pub fn event_path<'a>(directory: &[u8], pid: u32, attempt: u32, out: &'a mut [u8]) -> Option<&'a CStr> {
    let mut used = 0;
    put(out, &mut used, directory)?;
    put(out, &mut used, b"/")?;
    put_decimal(out, &mut used, pid)?;
    if attempt > 0 {
        put(out, &mut used, b"-")?;
        put_decimal(out, &mut used, attempt)?;
    }
    put(out, &mut used, FILE_SUFFIX.as_bytes())?;
    put(out, &mut used, b"\0")?;
    CStr::from_bytes_with_nul(&out[..used]).ok()
}

fn put(out: &mut [u8], used: &mut usize, bytes: &[u8]) -> Option<()> {
    out.get_mut(*used..*used + bytes.len())?.copy_from_slice(bytes);
    *used += bytes.len();
    Some(())
}

fn put_decimal(out: &mut [u8], used: &mut usize, number: u32) -> Option<()> {
    let mut digits = [0; 10];
    let mut first = digits.len();
    let mut rest = number;
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return put(out, used, &digits[first..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_have_names_of_their_own() {
        let mut space = [0; 64];
        assert_eq!(event_path(b"/d", 0, 0, &mut space), Some(c"/d/0.larder"));
        assert_eq!(event_path(b"/d", u32::MAX, 3, &mut space), Some(c"/d/4294967295-3.larder"));
    }

    #[test]
    fn a_path_that_does_not_fit_or_holds_a_zero_is_refused() {
        let mut space = [0; 11];
        assert_eq!(event_path(b"/d", 10, 0, &mut space), None);
        assert_eq!(event_path(b"/d", 1, 0, &mut space), None);
        let mut space = [0; 64];
        assert_eq!(event_path(b"/d\0e", 10, 0, &mut space), None);
    }
}
