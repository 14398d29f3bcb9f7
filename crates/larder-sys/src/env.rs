//! The environment and small files, read without allocating.

use core::ffi::CStr;

/// The value of an environment variable. Valid until the variable is changed: read it at once.
pub fn var(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: `name` is a C string; the environment is not changed while the caller reads the value.
    unsafe {
        let v = libc::getenv(name.as_ptr());
        if v.is_null() { None } else { Some(CStr::from_ptr(v)) }
    }
}

/// Whether the program has rights that who started it may lack: a set-user-ID program, or one with file capabilities. No file is written there because a
/// variable names it.
pub fn has_more_rights() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether the variable is set, to whatever.
pub fn is_set(name: &CStr) -> bool {
    var(name).is_some()
}

/// A decimal number with an optional suffix k, M, G or T (binary multiples), as libgc reads sizes.
pub fn parse_size(text: &CStr) -> Option<usize> {
    let bytes = text.to_bytes();
    let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    let mut n: usize = 0;
    for b in &bytes[..digits] {
        n = n.checked_mul(10)?.checked_add((b - b'0') as usize)?;
    }
    let shift = match &bytes[digits..] {
        [] => 0,
        [b'k' | b'K'] => 10,
        [b'm' | b'M'] => 20,
        [b'g' | b'G'] => 30,
        [b't' | b'T'] => 40,
        _ => return None,
    };
    n.checked_mul(1 << shift)
}

/// The variable as a size, where it is set and well-formed.
pub fn size(name: &CStr) -> Option<usize> {
    parse_size(var(name)?)
}

/// The number that a text begins with, as C's `atoi` reads it: blanks and a sign may stand before it, anything behind it. A number
/// that is negative or too large is none.
pub fn parse_leading(text: &CStr) -> Option<usize> {
    let text = text.to_bytes().trim_ascii_start();
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    core::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// Reads the beginning of a file into `into`; returns what was read. By system calls: the C library's functions end a thread that is to be cancelled,
/// and a collector reads while threads are stopped.
pub fn read_file<'a>(path: &CStr, into: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut used = 0;
    read_parts(path, |fd| {
        let n = read(fd, &mut into[used..]);
        used += n;
        n > 0
    })?;
    Some(&into[..used])
}

/// Calls `f` with each line of a file, without its end, until it says that it has seen enough; of a line that is longer than `buffer`, with its beginning. As
/// [`read_file`], where a file may be longer than what a small stack has room for.
pub fn for_each_line(path: &CStr, buffer: &mut [u8], mut f: impl FnMut(&[u8]) -> bool) -> Option<()> {
    let mut used = 0;
    // The rest of a long line is passed over.
    let mut skips = false;
    read_parts(path, |fd| {
        let n = read(fd, &mut buffer[used..]);
        let end = used + n;
        let mut line = 0;
        while let Some(length) = buffer[line..end].iter().position(|&b| b == b'\n') {
            if !core::mem::take(&mut skips) && !f(&buffer[line..line + length]) {
                return false;
            }
            line += length + 1;
        }
        if n == 0 {
            if line < end && !skips {
                f(&buffer[line..end]);
            }
            return false;
        }
        if line == 0 && end == buffer.len() {
            if !skips && !f(buffer) {
                return false;
            }
            (skips, line) = (true, end);
        }
        buffer.copy_within(line..end, 0);
        used = end - line;
        true
    })
}

/// Calls `f` with a file's descriptor until it says that it has read enough. `None` where the file cannot be opened.
fn read_parts(path: &CStr, mut f: impl FnMut(libc::c_long) -> bool) -> Option<()> {
    // SAFETY: the path is a C string, the descriptor is closed.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
        if fd < 0 {
            return None;
        }
        while f(fd) {}
        libc::syscall(libc::SYS_close, fd);
        Some(())
    }
}

/// Reads on; 0 at the end, where there is no room, and where nothing can be read.
fn read(fd: libc::c_long, into: &mut [u8]) -> usize {
    // SAFETY: the buffer is the caller's; whatever the descriptor is, reading writes nowhere else.
    let n = unsafe { libc::syscall(libc::SYS_read, fd, into.as_mut_ptr(), into.len()) };
    n.max(0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_with_suffixes_and_refuse_rubbish() {
        assert_eq!(parse_size(c"40M"), Some(40 << 20));
        assert_eq!(parse_size(c"1k"), Some(1024));
        assert_eq!(parse_size(c"17"), Some(17));
        assert_eq!(parse_size(c""), None);
        assert_eq!(parse_size(c"M"), None);
        assert_eq!(parse_size(c"3X"), None);
        assert_eq!(parse_size(c"99999999999999999999"), None);
    }

    #[test]
    fn lines_of_a_file_come_one_by_one_whatever_the_buffer() {
        let path = std::env::temp_dir().join(format!("larder-lines-{}", std::process::id()));
        let text = "one\n\nthe third one is long\n4\nlast";
        std::fs::write(&path, text).unwrap();
        let path_c = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        for size in 1..40 {
            let cut = |line: &str| line[..line.len().min(size)].to_owned();
            let lines: Vec<_> = text.split('\n').map(cut).collect();
            for most in 1..=lines.len() {
                let mut seen = Vec::new();
                let mut buffer = vec![0; size];
                let read = for_each_line(&path_c, &mut buffer, |line| {
                    seen.push(String::from_utf8(line.to_vec()).unwrap());
                    seen.len() < most
                });
                assert_eq!((read, &seen[..]), (Some(()), &lines[..most]), "{size}");
            }
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(for_each_line(&path_c, &mut [0; 8], |_| true), None);
    }

    #[test]
    fn leading_numbers_are_read_as_atoi_reads_them() {
        assert_eq!(parse_leading(c"7"), Some(7));
        assert_eq!(parse_leading(c"50k"), Some(50));
        assert_eq!(parse_leading(c" +12, or so"), Some(12));
        assert_eq!(parse_leading(c"0"), Some(0));
        assert_eq!(parse_leading(c"-4"), None);
        assert_eq!(parse_leading(c"x4"), None);
        assert_eq!(parse_leading(c""), None);
        assert_eq!(parse_leading(c"99999999999999999999"), None);
    }
}
