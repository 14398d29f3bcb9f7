//! Memory that is limited, and kernels that refuse.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::collector::Collector;
use super::{Outcome, Scratch, failed};

const MIB: usize = 1 << 20;

/// Threads allocate far more than `heap` bytes altogether and keep little; none of it may fail.
fn allocate_much(gc: &Collector, threads: usize, bytes: usize) -> Result<(), Outcome> {
    gc.crowd(
        threads,
        |number| {
            let seed = (number as u64) << 24;
            let head = gc.chain(seed);
            let mut made = 0;
            let mut size = 16;
            while made < bytes / threads {
                let object = (gc.GC_malloc)(size).cast::<u8>();
                if object.is_null() {
                    return Err(Outcome::Failed(format!(
                        "no memory for {size} bytes in a heap of {} MiB, most of it garbage",
                        (gc.GC_get_heap_size)() / MIB
                    )));
                }
                // SAFETY: a fresh object of at least 16 bytes.
                unsafe { object.write(1) };
                made += size;
                // Small, middle and large ones, up to 128 KiB.
                size = if size >= 128 << 10 { 16 } else { size * 2 };
            }
            gc.check(head, seed, "what a thread's stack points to")
        },
        || Ok(()),
    )
}

/// A maximum for the heap, in a program of many threads: it holds, and nothing fails where a collection helps.
pub fn maximum_heap(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    const MOST: usize = 16 * MIB;
    (gc.GC_set_max_heap_size)(MOST);
    let result = allocate_much(gc, 8, 256 * MIB);
    let size = (gc.GC_get_heap_size)();
    (gc.GC_set_max_heap_size)(0);
    result?;
    if size > MOST {
        return Err(Outcome::Failed(format!("the heap has {} MiB, allowed were {}", size / MIB, MOST / MIB)));
    }
    Ok(())
}

/// Little address space (ulimit -v).
pub fn address_space(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    allocate_much(gc, 4, 256 * MIB)
}

/// What [`address_space`] runs under.
pub fn limit_address_space() -> io::Result<()> {
    set_limit(libc::RLIMIT_AS, 768 * MIB)
}

/// Little writable memory (ulimit -d): the kernel counts every private writable mapping when it is made, as it does
/// where overcommit is off.
pub fn committed_memory(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    allocate_much(gc, 4, 256 * MIB)
}

/// What [`committed_memory`] runs under.
pub fn limit_committed_memory() -> io::Result<()> {
    set_limit(libc::RLIMIT_DATA, 192 * MIB)
}

fn set_limit(resource: libc::__rlimit_resource_t, bytes: usize) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: bytes as u64, rlim_max: bytes as u64 };
    // SAFETY: a whole limit.
    if unsafe { libc::setrlimit(resource, &limit) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The whole use of the heap by threads, where something that the heap likes to have is missing.
pub fn ordinary_use(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    gc.while_collecting(|| allocate_much(gc, 4, 32 * MIB))
}

/// What [`ordinary_use`] runs under: a machine without /proc and without /sys.
pub fn hide_proc() -> io::Result<()> {
    // SAFETY: terminated texts; this child of a fork has one thread, and the mounts are its own.
    unsafe {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let own = libc::unshare(libc::CLONE_NEWNS) == 0 || libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) == 0;
        let hidden = |path: &std::ffi::CStr| {
            libc::mount(c"none".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), libc::MS_RDONLY, std::ptr::null()) == 0
        };
        if own
            && libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()) == 0
            && hidden(c"/proc")
            && hidden(c"/sys")
        {
            return Ok(());
        }
    }
    Err(io::Error::last_os_error())
}

/// What [`ordinary_use`] runs under: a sandbox that refuses membarrier, userfaultfd and rseq.
pub fn refuse_calls() -> io::Result<()> {
    refuse(&[libc::SYS_membarrier, libc::SYS_userfaultfd, libc::SYS_rseq], libc::ENOSYS)
}

/// As [`refuse_calls`], membarrier alone: there are sequences, but a stop cannot abort them elsewhere.
pub fn refuse_membarrier() -> io::Result<()> {
    refuse(&[libc::SYS_membarrier], libc::EPERM)
}

/// As [`refuse_calls`], the call alone that queues a signal with a value.
pub fn refuse_signal_values() -> io::Result<()> {
    refuse(&[libc::SYS_rt_tgsigqueueinfo], libc::ENOSYS)
}

/// From now on these calls fail with that error.
fn refuse(calls: &[libc::c_long], error: i32) -> io::Result<()> {
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    const FAIL: u32 = 0x0005_0000;
    let step = |code, k, jt| libc::sock_filter { code, jt, jf: 0, k };
    // The first word of what a filter sees is the number of the call.
    let mut program = vec![step(LOAD, 0, 0)];
    // Over the other comparisons, and what allows the rest.
    program.extend(
        calls.iter().zip((1..=calls.len()).rev()).map(|(&call, over)| step(JUMP_IF_EQUAL, call as u32, over as u8)),
    );
    program.extend([step(RETURN, ALLOW, 0), step(RETURN, FAIL | error as u32, 0)]);
    install(&mut program)
}

/// Lets the kernel queue no signal: those that can be sent all the same arrive without saying who sent them.
pub fn limit_queued_signals() -> io::Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a whole limit.
    if unsafe { libc::setrlimit(libc::RLIMIT_SIGPENDING, &none) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn install(program: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a whole program, which the kernel copies.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        {
            return Ok(());
        }
    }
    Err(io::Error::last_os_error())
}

/// The memory limit of a control group, made for this process and set while it runs: collections begin early enough,
/// memory goes back, and the kernel kills nobody.
pub fn control_group(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    let group = Group::create()?;
    let limit = 48 * MIB;
    let result = (|| {
        // So much would be allocated before a collection that the machine's memory decides on: the heap's live data
        // allow it a budget of several times the limit.
        let live: Vec<_> = (0..12).map(|_| (gc.GC_malloc)(MIB)).collect();
        let words = live.as_ptr().cast_mut().cast::<libc::c_void>();
        let end = words.wrapping_add(live.len() * size_of::<usize>());
        (gc.GC_add_roots)(words, end);
        group.limit(limit)?;
        let used = || group.used();
        let result = allocate_much(gc, 4, 512 * MIB).and_then(|()| {
            let now = used()?;
            if now > limit { Err(Outcome::Failed(format!("{} MiB of {}", now / MIB, limit / MIB))) } else { Ok(()) }
        });
        (gc.GC_remove_roots)(words, end);
        result
    })();
    drop(group);
    result
}

/// A control group of our own, with this process in it; left and removed when dropped.
struct Group {
    folder: PathBuf,
    home: PathBuf,
    limit: &'static str,
    used: &'static str,
}

impl Group {
    fn create() -> Result<Self, Outcome> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(failed)?;
        let name = format!("larder-matrix-{}", std::process::id());
        let mut why = io::Error::from(io::ErrorKind::NotFound);
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let (root, limit, used) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
                "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
                _ => continue,
            };
            let home = PathBuf::from(root).join(path.trim_start_matches('/'));
            let group = Self { folder: home.join(&name), home, limit, used };
            let made = fs::create_dir(&group.folder)
                .and_then(|()| fs::metadata(group.folder.join(limit)))
                .and_then(|_| fs::write(group.folder.join("cgroup.procs"), "0"));
            match made {
                Ok(()) => return Ok(group),
                Err(error) => why = error,
            }
        }
        Err(Outcome::Skipped(format!("no control group with memory can be made here: {why}")))
    }

    fn limit(&self, bytes: usize) -> Result<(), Outcome> {
        fs::write(self.folder.join(self.limit), bytes.to_string()).map_err(failed)
    }

    fn used(&self) -> Result<usize, Outcome> {
        let text = fs::read_to_string(self.folder.join(self.used)).map_err(failed)?;
        text.trim().parse().map_err(|_| Outcome::Failed(format!("`{}` is no number", text.trim())))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What is left of it does no harm, and there is nobody to tell.
        let _ = fs::write(self.home.join("cgroup.procs"), "0");
        let _ = fs::remove_dir(&self.folder);
    }
}
