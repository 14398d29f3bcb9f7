//! Finds the program that was asked for, and looks at its file before it is started.
//!
//! A library goes into a program through the dynamic loader, so a program without one, or one for another
//! processor, cannot run on Larder; saying so here is clearer than what the kernel or the loader would say.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// Where the kernel's own default looks for programs when PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The file that `name` means, found as a shell finds it.
pub fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    let shown = name.to_string_lossy();
    if name.is_empty() {
        return Err(Failure::not_found("the program's name is empty"));
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Ok(_) => executable(&path).map(|()| path),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(Failure::cannot_run(format!("{shown}: {error}")))
            }
            Err(error) => Err(Failure::not_found(format!("{shown}: {error}: check the path"))),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let mut refused = None;
    for folder in std::env::split_paths(&path) {
        let candidate = if folder.as_os_str().is_empty() { Path::new(".").join(name) } else { folder.join(name) };
        if fs::metadata(&candidate).is_ok_and(|metadata| metadata.is_file()) {
            match executable(&candidate) {
                Ok(()) => return Ok(candidate),
                Err(failure) => refused = refused.or(Some(failure)),
            }
        }
    }
    Err(refused.unwrap_or_else(|| {
        let hint = if Path::new(name).exists() {
            format!(": did you mean ./{shown}?")
        } else if name.as_bytes().starts_with(b"-") {
            ", and no option of `larder run`".to_owned()
        } else {
            ": is it installed?".to_owned()
        };
        Failure::not_found(format!("{shown}: not found in PATH{hint}"))
    }))
}

fn executable(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| Failure::not_found(format!("{shown}: {error}")))?;
    if metadata.is_dir() {
        return Err(Failure::cannot_run(format!("{shown}: is a folder, not a program")));
    }
    if !metadata.is_file() {
        return Err(Failure::cannot_run(format!("{shown}: is no regular file, which a program is")));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(Failure::cannot_run(format!("{shown}: is not executable: chmod +x it, or name its interpreter")));
    }
    Ok(())
}

// The parts of the ELF header that matter here (System V ABI, chapter 4).
const ELF_MAGIC: &[u8] = b"\x7fELF";
const CLASS: usize = 4;
const CLASS_64: u8 = 2;
const DATA: usize = 5;
const DATA_LITTLE: u8 = 1;
const MACHINE: usize = 18;
const TABLE_OFFSET: usize = 32;
const ENTRY_BYTES: usize = 54;
const ENTRY_COUNT: usize = 56;
const HEADER_BYTES: usize = 64;
const PT_INTERP: u32 = 3;

#[cfg(target_arch = "x86_64")]
const OUR_MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const OUR_MACHINE: u16 = 183;

fn machine_name(machine: u16) -> String {
    match machine {
        3 => "32-bit x86".to_owned(),
        40 => "32-bit ARM".to_owned(),
        62 => "x86-64".to_owned(),
        183 => "aarch64".to_owned(),
        243 => "RISC-V".to_owned(),
        other => format!("ELF machine {other}"),
    }
}

/// Refuses a program that cannot run on Larder; otherwise says what the user should know about it, if anything.
///
/// What is not ELF is a script or something that the kernel knows how to start; what it starts is not looked at.
pub fn check(path: &Path) -> Result<Option<String>, Failure> {
    let shown = path.display();
    // A program may be executable and not readable; the kernel decides then.
    let Ok(mut file) = File::open(path) else { return Ok(None) };
    let mut header = [0; HEADER_BYTES];
    let mut length = 0;
    while length < header.len() {
        match file.read(&mut header[length..]) {
            Ok(0) | Err(_) => break,
            Ok(more) => length += more,
        }
    }
    if length < HEADER_BYTES || !header.starts_with(ELF_MAGIC) {
        return Ok(None);
    }
    let half = |place: usize| u16::from_le_bytes([header[place], header[place + 1]]);
    if header[DATA] != DATA_LITTLE {
        return Err(Failure::cannot_run(format!("{shown}: is a big-endian program, this machine is little-endian")));
    }
    if header[CLASS] != CLASS_64 || half(MACHINE) != OUR_MACHINE {
        return Err(Failure::cannot_run(format!(
            "{shown}: is a program for {}, and Larder's library is for {}: install the program for {1}",
            if header[CLASS] != CLASS_64 && half(MACHINE) == 62 {
                "x86-64 with 32-bit pointers (x32)".to_owned()
            } else {
                machine_name(half(MACHINE))
            },
            machine_name(OUR_MACHINE)
        )));
    }
    if !has_loader(&file, &header) && !is_loader(path) {
        return Err(Failure::cannot_run(format!(
            "{shown}: is statically linked, so no library can be put into it: link it dynamically with libgc \
             (without -static), or against Larder's library"
        )));
    }
    let metadata = fs::metadata(path).map_err(|error| Failure::not_found(format!("{shown}: {error}")))?;
    // SAFETY: these two have no precondition.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let mode = metadata.mode();
    if (mode & libc::S_ISUID != 0 && metadata.uid() != user) || (mode & libc::S_ISGID != 0 && metadata.gid() != group) {
        return Ok(Some(format!("{shown} is set-user-ID or set-group-ID: the loader ignores library paths for it")));
    }
    if user != 0 && has_capabilities(&file) {
        return Ok(Some(format!("{shown} has file capabilities: the loader ignores library paths for it")));
    }
    Ok(None)
}

/// Whether users other than root gain something by starting the file.
fn has_capabilities(file: &File) -> bool {
    // SAFETY: the name is terminated, and no bytes are asked for but their number.
    unsafe { libc::fgetxattr(file.as_raw_fd(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Whether the program headers name a dynamic loader.
fn has_loader(file: &File, header: &[u8; HEADER_BYTES]) -> bool {
    let table = u64::from_le_bytes(header[TABLE_OFFSET..TABLE_OFFSET + 8].try_into().expect("eight bytes"));
    let half = |place: usize| u64::from(u16::from_le_bytes([header[place], header[place + 1]]));
    (0..half(ENTRY_COUNT)).any(|entry| {
        let mut kind = [0; 4];
        // A damaged table is the kernel's to complain about.
        file.read_exact_at(&mut kind, table.wrapping_add(entry * half(ENTRY_BYTES))).is_err()
            || u32::from_le_bytes(kind) == PT_INTERP
    })
}

/// The loader itself names no loader and is a fine program to start.
fn is_loader(path: &Path) -> bool {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-") || name.as_bytes().starts_with(b"ld.so"))
}
