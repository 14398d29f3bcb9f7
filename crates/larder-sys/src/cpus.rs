//! How many CPUs there are: possible, allowed, and paid for are three different numbers.

use core::mem::MaybeUninit;

use crate::cgroup;
use crate::env::read_file;

/// CPUs that this machine could ever have: the bound of `cpu_id`, and so of `mm_cid`.
pub fn possible() -> usize {
    let mut buffer = [0; 256];
    read_file(c"/sys/devices/system/cpu/possible", &mut buffer)
        .and_then(last_of_cpu_list)
        .map(|last| last + 1)
        .unwrap_or_else(|| {
            // SAFETY: sysconf has no preconditions.
            unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as usize
        })
}

/// The largest number in a list such as `0-3,8-11`.
fn last_of_cpu_list(text: &[u8]) -> Option<usize> {
    text.split(|b| !b.is_ascii_digit())
        .filter(|part| !part.is_empty())
        .filter_map(|part| core::str::from_utf8(part).ok()?.parse().ok())
        .max()
}

/// CPUs that the calling thread's affinity mask allows.
pub fn allowed() -> usize {
    allowed_to(0)
}

/// CPUs that the process may use, as far as two of its threads tell: the calling one, which may be bound to a CPU of its own, and the
/// one that began the program.
pub fn allowed_to_process() -> usize {
    // SAFETY: getpid has no preconditions.
    allowed().max(allowed_to(unsafe { libc::getpid() }))
}

/// As [`allowed`], of a thread by its number; 0 is the calling thread.
fn allowed_to(thread: libc::pid_t) -> usize {
    CpuSet::of(thread).map_or(1, |set| set.count().max(1))
}

/// CPUs on which a thread may run: as many as the kernel can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSet([u64; 128]);

impl CpuSet {
    /// No CPU.
    pub const NONE: Self = Self([0; 128]);

    /// Those of a thread, by its number; 0 is the calling one. `None` where the kernel does not say.
    pub fn of(thread: libc::pid_t) -> Option<Self> {
        let mut set = Self::NONE;
        // SAFETY: the buffer is valid for its length. The raw call returns how many bytes the kernel wrote.
        let n = unsafe { libc::syscall(libc::SYS_sched_getaffinity, thread, size_of::<Self>(), set.0.as_mut_ptr()) };
        (n > 0).then_some(set)
    }

    /// Has a thread run on these only; false where the kernel refuses.
    pub fn bind(&self, thread: libc::pid_t) -> bool {
        // SAFETY: the buffer is valid for its length.
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, thread, size_of::<Self>(), self.0.as_ptr()) == 0 }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether a CPU is one of them.
    pub fn has(&self, cpu: usize) -> bool {
        self.0.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// Adds a CPU, or takes it out.
    pub fn put(&mut self, cpu: usize, on: bool) {
        if let Some(word) = self.0.get_mut(cpu / 64) {
            *word = *word & !(1 << (cpu % 64)) | u64::from(on) << (cpu % 64);
        }
    }
}

/// Vector instructions that the processor has and the kernel keeps the registers of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Simd {
    /// AVX2.
    pub avx2: bool,
    /// The first and common part of AVX-512.
    pub avx512f: bool,
    /// BMI1 and BMI2: bit manipulation.
    pub bmi2: bool,
}

/// Whether the processor is one of Intel's.
#[cfg(target_arch = "x86_64")]
pub fn is_intel() -> bool {
    let core::arch::x86_64::CpuidResult { ebx, edx, ecx, .. } = core::arch::x86_64::__cpuid(0);
    [ebx, edx, ecx].map(u32::to_le_bytes) == [*b"Genu", *b"ineI", *b"ntel"]
}

/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub fn is_intel() -> bool {
    false
}

/// Asks the processor. Not fast: a hypervisor may answer.
#[cfg(target_arch = "x86_64")]
pub fn simd() -> Simd {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    const OSXSAVE: u32 = 1 << 27;
    const AVX: u32 = 1 << 28;
    const BMI1: u32 = 1 << 3;
    const AVX2: u32 = 1 << 5;
    const BMI2: u32 = 1 << 8;
    const AVX512F: u32 = 1 << 16;
    /// State of the registers that the kernel saves: SSE and AVX.
    const YMM: u64 = 0b110;
    /// The same, and the masks and the two upper parts of AVX-512.
    const ZMM: u64 = 0b1110_0110;
    if __cpuid(0).eax < 7 {
        return Simd::default();
    }
    let one = __cpuid(1).ecx;
    if one & OSXSAVE == 0 || one & AVX == 0 {
        return Simd::default();
    }
    let (low, high): (u32, u32);
    // SAFETY: OSXSAVE says that the instruction exists; it reads one register.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    let saved = u64::from(high) << 32 | u64::from(low);
    let seven = __cpuid_count(7, 0).ebx;
    Simd {
        avx2: saved & YMM == YMM && seven & AVX2 != 0,
        avx512f: saved & ZMM == ZMM && seven & AVX512F != 0,
        bmi2: seven & BMI1 != 0 && seven & BMI2 != 0,
    }
}

/// CPUs that this process can really use at once: the affinity mask cut by the cgroup quota.
pub fn usable() -> usize {
    let allowed = allowed();
    cgroup::quota().map_or(allowed, |quota| quota.whole_cpus().min(allowed))
}

/// The CPU that the calling thread runs on, as far as one can say.
pub fn current() -> usize {
    let mut cpu = MaybeUninit::<u32>::zeroed();
    // SAFETY: the pointer is valid; node and cache are not asked for.
    unsafe {
        libc::syscall(libc::SYS_getcpu, cpu.as_mut_ptr(), 0, 0);
        cpu.assume_init() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_give_their_last_number() {
        assert_eq!(last_of_cpu_list(b"0-3,8-11\n"), Some(11));
        assert_eq!(last_of_cpu_list(b"0\n"), Some(0));
        assert_eq!(last_of_cpu_list(b"\n"), None);
    }

    #[test]
    fn the_numbers_are_ordered() {
        assert!(usable() >= 1 && usable() <= allowed());
        assert!(allowed() <= possible());
    }

    #[test]
    fn a_thread_that_is_bound_does_not_stand_for_the_process() {
        extern crate std;
        let all = allowed_to_process();
        let bound = std::thread::spawn(|| {
            // SAFETY: all zeroes are an empty set, and the calls have no other preconditions.
            unsafe {
                let mut set: libc::cpu_set_t = core::mem::zeroed();
                libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
                assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
            }
            (allowed(), allowed_to_process())
        });
        assert_eq!(bound.join().expect("the thread does not panic"), (1, all));
    }
}
