//! Starts a program with Larder's library first on the loader's path, follows its events, and waits for its end.

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use larder_events::DIRECTORY_VARIABLE;

use crate::exit::Failure;
use crate::follow::{Follower, Keep, ProcessSummary, Records};
use crate::library::{Library, PRELOAD_NAME};
use crate::signals::{self, Signals};

/// The loader's list of folders to look in first.
pub const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The loader's list of objects to load before all others.
const PRELOAD: &str = "LD_PRELOAD";
/// Options of programs that were built with `-fsanitize=address`.
const SANITIZER: &str = "ASAN_OPTIONS";
/// How often events are looked at: the ring holds 8192 cycles, so nothing is missed at any rate of collections.
const FOLLOW_EVERY_MS: i32 = 50;

/// How the names of the tool's folders begin.
const NAME: &str = "larder-";
/// In the place of this, the rest of such a name is drawn by lot.
const PLACES: &str = "XXXXXX";
/// How long nothing was made in a folder that is taken for one that was left. Much longer than it takes to make it and to lock it, since tools of
/// earlier versions do not lock theirs.
const LEFT_FOR: Duration = Duration::from_secs(3600);

/// What becomes of the program's standard output.
pub enum Output<'a> {
    /// It is that of the tool.
    Inherited,
    /// It goes into a text, and the program's input is empty.
    Captured(&'a mut String),
}

/// How a program ended and what its processes did.
pub struct Outcome {
    /// What the tool shall exit with.
    pub status: u8,
    /// From start to end.
    pub elapsed: Duration,
    /// The processes that used the heap, in the order in which they appeared.
    pub processes: Vec<ProcessSummary>,
}

/// Our interposed calls, before what the user preloads; nothing where the library's folder has none.
pub fn preload_list(library: &Library) -> Option<OsString> {
    let ours = library.folder.join(PRELOAD_NAME);
    if !ours.is_file() {
        return None;
    }
    // Blanks separate the objects of the list, and cannot be quoted. A bare name is looked for in the folders of `library_path`, of
    // which the library's is the first.
    let has_blank = ours.as_os_str().as_bytes().contains(&b' ');
    let mut list = if has_blank { PRELOAD_NAME.into() } else { ours.into_os_string() };
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    Some(list)
}

/// Lets a program with the address sanitizer start, before what the user sets. Its runtime ends the program where another library is
/// loaded before it, in case that one has a malloc of its own; ours has none.
fn sanitizer_options() -> OsString {
    let mut options = OsString::from("verify_asan_link_order=0");
    if let Some(others) = std::env::var_os(SANITIZER).filter(|others| !others.is_empty()) {
        options.push(":");
        options.push(others);
    }
    options
}

/// Runs `program` with `command` as its arguments, its own name included, and `settings` in its environment.
pub fn run(
    program: &Path,
    command: &[OsString],
    library: &Library,
    settings: &[(&str, &str)],
    records: Records,
    output: Output<'_>,
) -> Result<Outcome, Failure> {
    run_with(program, command, library, Settings::Added(settings), records, output)
}

/// As [`run`], with these variables for the heap and no others.
pub fn run_in(
    program: &Path,
    command: &[OsString],
    library: &Library,
    environment: &[(&str, String)],
    output: Output<'_>,
) -> Result<Outcome, Failure> {
    run_with(program, command, library, Settings::Only(environment), Records::default(), output)
}

/// Lets the tool open as many files as it ever may, for it keeps one open for each process that runs. Returns the limit from before, which is
/// the program's.
fn raise_file_limit() -> Option<libc::rlimit> {
    static BEFORE: OnceLock<Option<libc::rlimit>> = OnceLock::new();
    *BEFORE.get_or_init(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: both structures are ours.
        unsafe {
            if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
                return None;
            }
            let most = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
            (libc::setrlimit(libc::RLIMIT_NOFILE, &most) == 0).then_some(limit)
        }
    })
}

/// Takes what is set for the heap out of a program's environment.
pub fn forget_heap_variables(command: &mut Command) {
    let of_heap = |name: &OsString| name.as_bytes().starts_with(b"GC_") || name.as_bytes().starts_with(b"LARDER_");
    std::env::vars_os().map(|(name, _)| name).filter(of_heap).for_each(|name| {
        command.env_remove(name);
    });
}

/// Variables for the program.
enum Settings<'a> {
    /// Beside those that the caller has.
    Added(&'a [(&'a str, &'a str)]),
    /// In the place of those for the heap that the caller has.
    Only(&'a [(&'a str, String)]),
}

fn run_with(
    program: &Path,
    command: &[OsString],
    library: &Library,
    settings: Settings<'_>,
    records: Records,
    output: Output<'_>,
) -> Result<Outcome, Failure> {
    let taken = Signals::take().map_err(|error| Failure::tool(format!("signals cannot be received: {error}")))?;
    // Gone before a signal that came too late to be passed on may end the tool.
    let folder = EventsFolder::create()?;
    let mut child = Command::new(program);
    child.arg0(&command[0]).args(&command[1..]);
    match settings {
        Settings::Added(added) => _ = child.envs(added.iter().copied()),
        Settings::Only(only) => {
            forget_heap_variables(&mut child);
            child.envs(only.iter().map(|(name, value)| (name, value)));
        }
    }
    child.env(LIBRARY_PATH, library_path(library)?);
    if let Some(preload) = preload_list(library) {
        child.env(PRELOAD, preload).env(SANITIZER, sanitizer_options());
    }
    child.env(DIRECTORY_VARIABLE.to_str().expect("ASCII"), &folder.path);
    if let Output::Captured(_) = output {
        child.stdin(Stdio::null()).stdout(Stdio::piped());
    }
    let mask = taken.mask_before();
    let file_limit = raise_file_limit();
    // SAFETY: the closure makes async-signal-safe calls alone, on a copy of its own.
    unsafe {
        child.pre_exec(move || {
            signals::give_back();
            if let Some(limit) = &file_limit
                && libc::setrlimit(libc::RLIMIT_NOFILE, limit) != 0
            {
                return Err(io::Error::last_os_error());
            }
            match libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut()) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        });
    }
    let started = Instant::now();
    let mut child = child.spawn().map_err(|error| spawn_failure(program, &error))?;
    let pid = child.id() as libc::pid_t;

    let mut follower = Follower::new(&folder.path, Keep::Nothing, records);
    let captured = child.stdout.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    });
    let status = loop {
        follower.look();
        if let Some(status) = child.try_wait().map_err(|error| Failure::tool(format!("waiting failed: {error}")))? {
            break status;
        }
        taken.wait(pid, FOLLOW_EVERY_MS);
    };
    let elapsed = started.elapsed();
    follower.look();
    if let (Output::Captured(text), Some(reader)) = (output, captured) {
        *text = reader.join().unwrap_or_default();
    }
    let status = match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, signal) => 128 + signal.unwrap_or(0) as u8,
    };
    Ok(Outcome { status, elapsed, processes: follower.finish() })
}

/// The library's folder, before what the loader's path has.
pub fn library_path(library: &Library) -> Result<OsString, Failure> {
    let folder = &library.folder;
    if folder.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b':' | b';')) {
        return Err(Failure::tool(format!(
            "{}: a folder on the loader's path cannot have ':' or ';' in its name: move the library",
            folder.display()
        )));
    }
    let mut path = folder.clone().into_os_string();
    // An empty list would stand for the current folder.
    if let Some(rest) = std::env::var_os(LIBRARY_PATH).filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    Ok(path)
}

fn spawn_failure(program: &Path, error: &io::Error) -> Failure {
    let shown = program.display();
    if error.kind() == io::ErrorKind::NotFound {
        // The file is there, it was looked at before; what is missing is what it asks for.
        let head = fs::read(program).unwrap_or_default();
        if head.starts_with(b"#!") {
            let line = head[2..].split(|byte| *byte == b'\n').next().unwrap_or_default();
            let interpreter = String::from_utf8_lossy(line);
            return Failure::not_found(format!("{shown}: its interpreter is missing: {}", interpreter.trim()));
        }
        return Failure::not_found(format!("{shown}: its dynamic loader is missing: see `readelf -l {shown}`"));
    }
    Failure::cannot_run(format!("{shown}: cannot be started: {error}"))
}

/// A folder for the events files of one run, gone with it.
struct EventsFolder {
    path: PathBuf,
    /// Locked while the tool lives: one that was killed leaves a folder that nobody has locked.
    _lock: Option<File>,
}

impl EventsFolder {
    /// In memory where possible: a file on a disk could make a process wait for the disk while its world is stopped.
    fn create() -> Result<Self, Failure> {
        let mut last = None;
        for parent in [PathBuf::from("/dev/shm"), std::env::temp_dir()] {
            remove_left_folders(&parent);
            // Where there is no room, cycles are left out of the events.
            if room_bytes(&parent).is_some_and(|room| room < 2 * larder_events::FILE_BYTES as u64) {
                last = Some(format!("{}: the file system is nearly full", parent.display()));
                continue;
            }
            match make_folder(&parent) {
                Ok(path) => return Ok(EventsFolder { _lock: lock(&path), path }),
                Err(error) => last = Some(format!("{}: {error}", parent.display())),
            }
        }
        Err(Failure::tool(format!(
            "no folder for events could be made: {}: set TMPDIR to a folder with room",
            last.unwrap_or_default()
        )))
    }
}

impl Drop for EventsFolder {
    fn drop(&mut self) {
        // A process that outlives the program may still create a file; it loses nothing but its events.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of tools that were killed: they take memory until somebody does.
fn remove_left_folders(parent: &Path) {
    // SAFETY: the call has no precondition.
    let user = unsafe { libc::geteuid() };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours = name.as_bytes().starts_with(NAME.as_bytes()) && name.len() == NAME.len() + PLACES.len();
        // What the entry is itself, not what it may be a link to.
        let Ok(metadata) = entry.metadata() else { continue };
        let is_old = metadata.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= LEFT_FOR));
        if is_ours && is_old && metadata.is_dir() && metadata.uid() == user && lock(&entry.path()).is_some() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Locks a folder until the file is closed, unless somebody has.
fn lock(folder: &Path) -> Option<File> {
    let file = File::open(folder).ok()?;
    file.try_lock().is_ok().then_some(file)
}

/// A folder of our own, where temporary files are, that goes away.
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
}

impl Folder {
    /// A new one.
    pub fn create() -> Result<Self, Failure> {
        let path = make_folder(&std::env::temp_dir()).map_err(|error| {
            Failure::tool(format!("no folder could be made in {}: {error}: set TMPDIR", std::env::temp_dir().display()))
        })?;
        Ok(Folder { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A new folder with a name of its own, readable by this user only.
pub fn make_folder(parent: &Path) -> io::Result<PathBuf> {
    let template = CString::new(parent.join(format!("{NAME}{PLACES}")).into_os_string().as_bytes())?;
    let mut template = template.into_bytes_with_nul();
    // SAFETY: a terminated text of our own that ends in the six characters that mkdtemp wants.
    if unsafe { libc::mkdtemp(template.as_mut_ptr().cast()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    template.pop();
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&template)))
}

fn room_bytes(folder: &Path) -> Option<u64> {
    let path = CString::new(folder.as_os_str().as_bytes()).ok()?;
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is terminated, and the structure is read only where the call filled it in.
    unsafe {
        if libc::statvfs(path.as_ptr(), found.as_mut_ptr()) != 0 {
            return None;
        }
        let found = found.assume_init();
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }
}
