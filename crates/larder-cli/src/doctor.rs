//! `larder doctor`: what this machine offers to a heap, and what follows from each thing.
//!
//! Each finding is made by trying, in this process, not by comparing versions: containers and tunables change what a kernel
//! offers. `doctor` runs without the library.

use std::ffi::{CStr, c_char};
use std::fs;
use std::mem::{MaybeUninit, size_of};
use std::path::PathBuf;

use larder_policy::crew::{CrewFacts, most_markers};
use larder_sys::cgroup;
use larder_sys::watch::{self, Kind};
use larder_units::Bytes;
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::{library, say};

/// One thing that was looked at.
struct Finding {
    /// Key in JSON, and first column.
    name: &'static str,
    /// What there is, for people.
    found: String,
    /// What Larder does because of it.
    follows: String,
    /// What there is, for programs.
    value: Value,
}

/// Prints every finding.
pub fn print(as_json: bool) -> Result<(), Failure> {
    let findings = examine();
    if as_json {
        let object: serde_json::Map<_, _> = findings
            .into_iter()
            .map(|f| (f.name.to_owned(), json!({"found": f.found, "follows": f.follows, "value": f.value})))
            .collect();
        return say::print(&format!("{:#}\n", Value::Object(object)));
    }
    let line = |f: Finding| format!("{:<20} {}\n{:<20}   -> {}\n", f.name, f.found, "", f.follows);
    say::print(&findings.into_iter().map(line).collect::<String>())
}

fn examine() -> Vec<Finding> {
    vec![
        system(),
        rseq(),
        critical_sections(),
        membarrier(),
        userfaultfd(),
        pagemap_scan(),
        write_watching(),
        huge_pages(),
        overcommit(),
        address_space(),
        control_group(),
        cpus(),
        our_library(),
        stock_library(),
    ]
}

fn finding(name: &'static str, found: impl Into<String>, follows: impl Into<String>, value: Value) -> Finding {
    Finding { name, found: found.into(), follows: follows.into(), value }
}

fn system() -> Finding {
    let mut names = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the structure is ours, and zeros are a valid one should the call fail.
    let names = unsafe {
        libc::uname(names.as_mut_ptr());
        names.assume_init()
    };
    // SAFETY: both are terminated texts in `names`.
    let (kernel, machine) = unsafe { (text(names.release.as_ptr()), text(names.machine.as_ptr())) };
    let glibc = glibc_version();
    let shown = glibc.clone().unwrap_or_else(|| "none".to_owned());
    let follows = match &glibc {
        None => {
            "Larder's library needs glibc; a tool built for another C library cannot tell what the programs here use"
        }
        Some(version) if at_least(version, 2, 35) => {
            "new enough: glibc registers restartable sequences for every thread"
        }
        Some(_) => "before 2.35 glibc registers no restartable sequences: a buffer for each thread",
    };
    finding(
        "system",
        format!("Linux {kernel} on {machine}, glibc {shown}"),
        follows,
        json!({"kernel": kernel, "machine": machine, "glibc": glibc}),
    )
}

fn rseq() -> Finding {
    const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
    const AT_RSEQ_ALIGN: libc::c_ulong = 28;
    /// Bytes of features with which the kernel also fills in `mm_cid`, at offset 24.
    const FEATURES_WITH_CONCURRENCY_ID: u64 = 28;
    // SAFETY: reads the process's auxiliary vector; unknown keys give 0.
    let (features, align) = unsafe { (libc::getauxval(AT_RSEQ_FEATURE_SIZE), libc::getauxval(AT_RSEQ_ALIGN)) };
    let registered = registered_rseq();
    let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    let turned_off = tunables.split(':').any(|tunable| tunable == "glibc.pthread.rseq=0");
    let cpu_id = registered.and_then(|area| area.cpu_id);
    // Without it a stop could not close a buffer under a thread that it does not know, so the heap uses no sequences.
    let (_, aborted_elsewhere) = barriers().unwrap_or((false, false));
    let index = match cpu_id {
        None => "thread",
        Some(_) if !aborted_elsewhere => "thread",
        Some(_) if features >= FEATURES_WITH_CONCURRENCY_ID => "mm_cid",
        Some(_) => "cpu_id",
    };
    let found = match (registered, cpu_id) {
        (None, _) if turned_off => "turned off by GLIBC_TUNABLES (glibc.pthread.rseq=0)".to_owned(),
        (None, _) => "no area: glibc exports none, or registered none".to_owned(),
        (Some(area), None) => format!(
            "area of {} bytes at offset {}, but the kernel does not fill it in{}",
            area.size,
            area.offset,
            if turned_off { ": turned off by GLIBC_TUNABLES (glibc.pthread.rseq=0)" } else { "" }
        ),
        (Some(area), Some(cpu)) => format!(
            "glibc's area of {} bytes at offset {}; on CPU {cpu}; kernel features {features} bytes, alignment {align}",
            area.size, area.offset
        ),
    };
    let follows = match index {
        "mm_cid" => "allocation without locks, a buffer for each concurrency id: as many as threads that run at once",
        "cpu_id" => {
            "allocation without locks, a buffer for each CPU; kernel 6.3 and later offer concurrency ids, which need fewer"
        }
        _ if cpu_id.is_some() => {
            "a buffer for each thread: right, but memory grows with threads; membarrier cannot abort sequences, which needs kernel 5.10 and a sandbox that allows it"
        }
        _ if turned_off => "a buffer for each thread: right, but memory grows with threads; unset the tunable",
        _ => {
            "a buffer for each thread: right, but memory grows with threads; needs kernel 5.10 (its membarrier aborts sequences), glibc 2.35, and a sandbox that allows both"
        }
    };
    let area = registered.map(|area| json!({"size": area.size, "offset": area.offset}));
    finding(
        "rseq",
        found,
        follows,
        json!({"index": index, "area": area, "cpu_id": cpu_id, "feature_bytes": features, "align": align, "turned_off": turned_off}),
    )
}

/// How transactions and per-CPU structures (`larder-percpu`) work in a process like this one.
fn critical_sections() -> Finding {
    const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
    const FEATURES_WITH_CONCURRENCY_ID: u64 = 28;
    let is_registered = registered_rseq().is_some_and(|area| area.cpu_id.is_some());
    let (_, aborted_elsewhere) = barriers().unwrap_or((false, false));
    let reason = match (is_registered, aborted_elsewhere) {
        (true, true) => None,
        (true, false) => Some("membarrier cannot abort sequences (kernel 5.10 or later can)"),
        (false, _) => Some("restartable sequences are not registered (see rseq)"),
    };
    // SAFETY: reads the process's auxiliary vector; unknown keys give 0.
    let has_ids = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) } >= FEATURES_WITH_CONCURRENCY_ID;
    let (mode, found, follows) = match reason {
        Some(why) => (
            "locks",
            format!("by locks: {why}"),
            "the same interface; each begin, commit and one-shot operation takes a short lock",
        ),
        None if has_ids => (
            "sequences",
            "by sequences, on concurrency ids or CPUs".to_owned(),
            "transactions and per-CPU structures need no lock; memory grows with what runs at once",
        ),
        None => (
            "sequences",
            "by sequences, on CPUs".to_owned(),
            "transactions and per-CPU structures need no lock; kernel 6.3 and later offer concurrency ids",
        ),
    };
    finding("critical_sections", found, follows, json!({"mode": mode, "reason": reason}))
}

#[derive(Clone, Copy)]
struct RseqArea {
    size: u32,
    offset: isize,
    /// `None` where the kernel holds no registration.
    cpu_id: Option<u32>,
}

/// The area that glibc registered for this thread.
fn registered_rseq() -> Option<RseqArea> {
    let size = symbol(c"__rseq_size")?;
    let offset = symbol(c"__rseq_offset")?;
    // SAFETY: glibc declares these two as `const unsigned int` and `const ptrdiff_t`.
    let (size, offset) = unsafe { (*size.cast::<u32>(), *offset.cast::<isize>()) };
    if size == 0 {
        return None;
    }
    let cpu_id = if cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        // SAFETY: no precondition. In glibc on x86-64 the handle is the thread pointer.
        let thread = unsafe { libc::pthread_self() } as *const u8;
        // SAFETY: glibc keeps an area of `size` bytes at `offset` from the thread pointer; `cpu_id` is at 4, written by the kernel.
        let cpu = unsafe { thread.offset(offset).add(4).cast::<i32>().read_volatile() };
        u32::try_from(cpu).ok()
    } else {
        None
    };
    Some(RseqArea { size, offset, cpu_id })
}

/// Whether membarrier has PRIVATE_EXPEDITED, and PRIVATE_EXPEDITED_RSEQ.
fn barriers() -> std::io::Result<(bool, bool)> {
    const QUERY: libc::c_long = 0;
    const PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
    const PRIVATE_EXPEDITED_RSEQ: libc::c_long = 1 << 7;
    // SAFETY: a query takes no memory.
    let commands = unsafe { libc::syscall(libc::SYS_membarrier, QUERY, 0, 0) };
    if commands < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok((commands & PRIVATE_EXPEDITED != 0, commands & PRIVATE_EXPEDITED_RSEQ != 0))
}

fn membarrier() -> Finding {
    let answer = barriers();
    let yes = |on| if on { "yes" } else { "no" };
    let found = match &answer {
        Err(error) => format!("none: {error}"),
        Ok((expedited, with_rseq)) => {
            format!("PRIVATE_EXPEDITED {}, PRIVATE_EXPEDITED_RSEQ {}", yes(*expedited), yes(*with_rseq))
        }
    };
    let (expedited, with_rseq) = answer.unwrap_or((false, false));
    // Blocking regions pass a full fence in any case; only buffers depend on this.
    let follows = if with_rseq {
        "a stop can close other CPUs' buffers: sequences can be used where there is rseq"
    } else {
        "a stop cannot close other CPUs' buffers: a buffer for each thread; needs kernel 5.10"
    };
    finding("membarrier", found, follows, json!({"private_expedited": expedited, "private_expedited_rseq": with_rseq}))
}

/// `struct uffdio_api` of linux/userfaultfd.h.
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

fn userfaultfd() -> Finding {
    const USER_MODE_ONLY: libc::c_int = 1;
    const API: u64 = 0xaa;
    /// _IOWR(0xaa, 0x3f, struct uffdio_api)
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    const FEATURE_WP_ASYNC: u64 = 1 << 15;
    // SAFETY: takes flags only.
    let file = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
    if file < 0 {
        let error = std::io::Error::last_os_error();
        return finding(
            "userfaultfd",
            format!("not available: {error}"),
            "write_watching says what else there is to watch writes by",
            json!({"available": false, "wp_async": false, "kernel_faults": false}),
        );
    }
    let mut api = UffdioApi { api: API, features: 0, ioctls: 0 };
    // SAFETY: the descriptor is ours and the structure is the one that the request names.
    let answered = unsafe {
        let answered = libc::ioctl(file as libc::c_int, UFFDIO_API, &raw mut api) == 0;
        libc::close(file as libc::c_int);
        answered
    };
    let wp_async = answered && api.features & FEATURE_WP_ASYNC != 0;
    // Without the flag, faults from system calls are reported too; that needs a privilege or a sysctl.
    // SAFETY: takes flags only; the descriptor is closed at once.
    let kernel_faults = unsafe {
        let file = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
        if file >= 0 {
            libc::close(file as libc::c_int);
        }
        file >= 0
    };
    finding(
        "userfaultfd",
        format!(
            "available {}, asynchronous write protection {}",
            if kernel_faults { "in full" } else { "without privilege (faults of user code only)" },
            if wp_async { "yes" } else { "no" }
        ),
        if wp_async {
            "a concurrent collector can watch writes without signals"
        } else {
            "write_watching says what else there is to watch writes by; asynchronous protection needs kernel 6.7"
        },
        json!({"available": true, "wp_async": wp_async, "kernel_faults": kernel_faults}),
    )
}

fn pagemap_scan() -> Finding {
    let result = watch::scan_works();
    let works = result == Ok(true);
    finding(
        "pagemap_scan",
        match &result {
            Ok(_) => "yes".to_owned(),
            Err(error) => format!("no: {}", std::io::Error::from_raw_os_error(error.errno)),
        },
        if works {
            "written pages are found with one call; static data that was never written is not scanned"
        } else {
            "write_watching says what else there is to find written pages by, and all static data is scanned; needs kernel 6.7 and /proc"
        },
        json!(works),
    )
}

/// The kinds of write watching that work here, as the library tries them.
fn write_watching() -> Finding {
    let offered: Vec<&str> = Kind::ALL.into_iter().filter(|kind| kind.is_offered()).map(Kind::name).collect();
    let best = Kind::best();
    finding(
        "write_watching",
        offered.join(", "),
        match best {
            Some(kind) => format!("collections beside the program (larder run --concurrent) watch its writes by {}", kind.name()),
            None => "collections stop the program, unless LARDER_WATCH=mprotect asks for a kind that is not right for every program"
                .to_owned(),
        },
        json!({"offered": offered, "chosen": best.map(Kind::name)}),
    )
}

fn huge_pages() -> Finding {
    let text = read("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    // The choice in force is in brackets.
    let mode = text.split(['[', ']']).nth(1).unwrap_or("not available").to_owned();
    let follows = match mode.as_str() {
        "always" => {
            "the kernel backs the heap with huge pages where it has them: resident memory comes in pieces of 2 MiB, and a page \
             fault may wait while it makes one"
        }
        "madvise" => {
            "a heap of more than 64 MiB asks for huge pages while many are free, so that no page fault waits while the kernel makes one; \
             smaller heaps, and objects with pointers where collections go on beside the program, have pages of 4 KiB"
        }
        _ => "every page is 4 KiB",
    };
    finding("huge_pages", mode.clone(), follows, json!(mode))
}

fn overcommit() -> Finding {
    let mode = read("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    let (found, follows) = match mode.as_str() {
        "0" => ("0, heuristic", "address space can be reserved freely"),
        "1" => ("1, always", "address space can be reserved freely"),
        "2" => ("2, strict", "memory that is reserved without access does not count; what the heap uses does"),
        _ => ("unknown", "/proc/sys/vm is not readable; reservations are tried and made smaller where they fail"),
    };
    finding("overcommit", found, follows, json!(mode.parse::<u8>().ok()))
}

fn address_space() -> Finding {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is ours.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    if limit.rlim_cur == libc::RLIM_INFINITY {
        return finding("address_space", "no limit", "the heap reserves its whole range at the start", Value::Null);
    }
    finding(
        "address_space",
        format!("limited to {} (ulimit -v)", Bytes(limit.rlim_cur as usize)),
        "the heap takes address space as it grows, while the program leaves some",
        json!(limit.rlim_cur),
    )
}

fn control_group() -> Finding {
    let limits = cgroup::limits();
    let memory = limits.memory.map_or("no limit".to_owned(), |limit| limit.to_string());
    let cpus = limits.quota.map_or("no quota".to_owned(), |quota| format!("quota of {:.2} CPUs", quota.cpus()));
    let found = match limits.version {
        None => "none with limits".to_owned(),
        Some(version) => format!("version {version}: memory {memory}, {cpus}"),
    };
    let heed_memory = "cycles begin earlier near the memory limit, and memory goes back first";
    let follows = match (limits.memory, limits.quota) {
        (None, None) => "the machine's memory and CPUs are the limits".to_owned(),
        (Some(_), None) => heed_memory.to_owned(),
        (None, Some(_)) => "no more markers than the quota pays for".to_owned(),
        (Some(_), Some(_)) => format!("{heed_memory}; no more markers than the quota pays for"),
    };
    finding(
        "cgroup",
        found,
        follows,
        json!({
            "version": limits.version,
            "memory_bytes": limits.memory.map(|limit| limit.0),
            "cpus": limits.quota.map(cgroup::Quota::cpus),
        }),
    )
}

fn cpus() -> Finding {
    let counted = |name: &str| read(&format!("/sys/devices/system/cpu/{name}")).and_then(|list| count_list(&list));
    let (possible, online) = (counted("possible"), counted("online"));
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the set is ours and zeros are an empty one; more CPUs than it holds make the call fail.
    let allowed = unsafe {
        let failed = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) != 0;
        if failed { None } else { Some(libc::CPU_COUNT(&set.assume_init()) as usize) }
    };
    let markers = allowed
        .map(|_| most_markers(CrewFacts { usable_cpus: larder_sys::cpus::usable(), asked: None, traced: Bytes::ZERO }));
    let shown = |count: Option<usize>| count.map_or("?".to_owned(), |count| count.to_string());
    finding(
        "cpus",
        format!("{} possible, {} online, {} allowed to us", shown(possible), shown(online), shown(allowed)),
        format!("tables for {} CPUs, filled in as they are used; at most {} markers", shown(possible), shown(markers)),
        json!({"possible": possible, "online": online, "allowed": allowed}),
    )
}

fn our_library() -> Finding {
    match library::find_built() {
        Some(library) => {
            let path = library.folder.join(library::FILE_NAME);
            finding("library", path.display().to_string(), "`larder run` puts it in the place of libgc", json!(path))
        }
        None => finding(
            "library",
            "not found beside this command",
            "`larder run` builds it where the sources and cargo are; otherwise set LARDER_LIB to its folder",
            Value::Null,
        ),
    }
}

fn stock_library() -> Finding {
    match stock_libgc() {
        Some(path) => {
            let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
            let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
            finding(
                "stock_libgc",
                format!("{} ({name})", path.display()),
                "`larder demo` compares with it; programs use it unless they run under `larder run`",
                json!(path),
            )
        }
        None => finding(
            "stock_libgc",
            "not installed",
            "`larder demo` runs on Larder alone (Debian: apt install libgc1)",
            Value::Null,
        ),
    }
}

/// The libgc that programs here find by default.
pub fn stock_libgc() -> Option<PathBuf> {
    let multiarch = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = format!("{}-linux-gnu", std::env::consts::ARCH);
    multiarch
        .filter(|folder| folder.ends_with(&ours))
        .chain(["/usr/local/lib", "/usr/lib64", "/lib64", "/usr/lib"].map(PathBuf::from))
        .map(|folder| folder.join(library::FILE_NAME))
        .find(|path| path.exists())
}

/// How many CPUs a list such as `0-3,8` names.
fn count_list(list: &str) -> Option<usize> {
    list.split(',')
        .map(|part| match part.split_once('-') {
            Some((first, last)) => Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1),
            None => part.parse::<usize>().ok().map(|_| 1),
        })
        .sum()
}

fn at_least(version: &str, major: u32, minor: u32) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

fn glibc_version() -> Option<String> {
    let function = symbol(c"gnu_get_libc_version")?;
    // SAFETY: glibc declares the function as `const char *gnu_get_libc_version(void)`.
    let function = unsafe { std::mem::transmute::<*const (), extern "C" fn() -> *const c_char>(function) };
    // SAFETY: the result is a terminated text that stays.
    Some(unsafe { text(function()) })
}

/// The address of a symbol of this process, where there is one: the tool also runs where glibc does not have it.
fn symbol(name: &CStr) -> Option<*const ()> {
    // SAFETY: the name is terminated; a lookup in what is loaded runs no code.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address.cast_const().cast())
}

/// # Safety
/// `text` is terminated.
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(count_list("0"), Some(1));
        assert_eq!(count_list("0-3,8,10-11"), Some(7));
        assert_eq!(count_list(""), None);
        assert_eq!(count_list("3-1"), None);
    }

    #[test]
    fn versions_compare_by_number() {
        assert!(at_least("2.36", 2, 35) && at_least("2.100", 2, 35) && at_least("3.0", 2, 35));
        assert!(!at_least("2.4", 2, 35));
    }
}
