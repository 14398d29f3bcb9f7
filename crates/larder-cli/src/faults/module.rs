//! Shared objects made on the spot: no code, one word of data, and thread-local storage of any size.
//!
//! A test of loading and unloading wants many different objects, and neither a compiler nor files that would have to be
//! installed with the tool. `dlsym` of a thread-local symbol gives the calling thread's copy, so such an object needs no
//! instruction.

use std::ffi::{CStr, CString, c_void};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where the one word of data lies in the file and in memory.
const DATA: usize = 0x800;
const SIZE: usize = 0x1000;

/// Writes a shared object with the symbols `data` (8 bytes) and `local` (8 bytes, the first of `local_bytes` of
/// thread-local storage).
pub fn write(path: &Path, local_bytes: usize) -> io::Result<()> {
    let mut image = vec![0u8; SIZE];
    let put = |image: &mut [u8], at: usize, words: &[u64]| {
        for (i, word) in words.iter().enumerate() {
            image[at + 8 * i..at + 8 * i + 8].copy_from_slice(&word.to_le_bytes());
        }
    };
    let (headers, dynamic, symbols, strings, hash) = (0x40usize, 0x200, 0x300, 0x400, 0x500);
    // The ELF header: 64 bits, little endian, a shared object for x86-64, four program headers, no sections.
    image[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    put(&mut image, 16, &[3 | 62 << 16 | 1 << 32, 0, headers as u64, 0, 64 << 32 | 56 << 48, 4 | 64 << 16]);
    let (load, dynamic_segment, tls, stack) = (1u64, 2u64, 7u64, 0x6474_e551u64);
    let (read, write) = (4u64 << 32, 2u64 << 32);
    let segments = [
        [load | read | write, 0, 0, 0, SIZE as u64, SIZE as u64, 0x1000],
        [dynamic_segment | read | write, dynamic as u64, dynamic as u64, dynamic as u64, 0x60, 0x60, 8],
        [tls | read, SIZE as u64, SIZE as u64, SIZE as u64, 0, local_bytes as u64, 16],
        // Without this the loader would take the object to want an executable stack.
        [stack | read | write, 0, 0, 0, 0, 0, 16],
    ];
    for (i, segment) in segments.iter().enumerate() {
        put(&mut image, headers + 56 * i, segment);
    }
    // DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, and the end.
    let entries = [4, hash as u64, 5, strings as u64, 6, symbols as u64, 10, 13, 11, 24, 0, 0];
    put(&mut image, dynamic, &entries);
    image[strings..strings + 13].copy_from_slice(b"\0data\0local\0\0");
    // Two global symbols in "section" 1: name, kind, section; value; size.
    let (object, local) = (0x11u64, 0x16u64);
    put(&mut image, symbols + 24, &[1 | object << 32 | 1 << 48, DATA as u64, 8]);
    put(&mut image, symbols + 48, &[6 | local << 32 | 1 << 48, 0, 8]);
    // One bucket, whose chain is symbol 1, then 2.
    let table: [u32; 6] = [1, 3, 1, 0, 2, 0];
    for (i, word) in table.iter().enumerate() {
        image[hash + 4 * i..hash + 4 * i + 4].copy_from_slice(&word.to_le_bytes());
    }
    fs::write(path, image)
}

/// A loaded object; unloaded when dropped.
pub struct Module(*mut c_void);

// SAFETY: a handle of dlopen may be used by any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads the object.
    pub fn load(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: a terminated name; the object has no code that could run.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: dlerror returns a terminated text after a failure.
            return Err(unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned());
        }
        Ok(Self(handle))
    }

    /// The word of static data.
    pub fn data(&self) -> *mut *mut c_void {
        // SAFETY: a handle of dlopen and a terminated name.
        unsafe { libc::dlsym(self.0, c"data".as_ptr()).cast() }
    }

    /// The calling thread's word of thread-local storage.
    pub fn local(&self) -> *mut *mut c_void {
        // SAFETY: as in `data`.
        unsafe { libc::dlsym(self.0, c"local".as_ptr()).cast() }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the handle was not closed before.
        unsafe { libc::dlclose(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_its_own_local_word_and_all_have_one_of_data() {
        let path = std::env::temp_dir().join(format!("larder-module-test-{}.so", std::process::id()));
        write(&path, 4096).unwrap();
        let module = Module::load(&path).unwrap();
        let (data, local) = (module.data().addr(), module.local().addr());
        assert!(data != 0 && local != 0);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| (module.data().addr(), module.local().addr())).join().unwrap();
            assert_eq!(other.0, data);
            assert!(other.1 != 0 && other.1 != local);
        });
        fs::remove_file(path).unwrap();
    }
}
