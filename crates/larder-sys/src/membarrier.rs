//! The membarrier system call: fences and sequence aborts on other CPUs.

const CMD_QUERY: i32 = 0;
const CMD_PRIVATE_EXPEDITED: i32 = 1 << 3;
const CMD_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
const CMD_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
const CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;

/// The third argument names a CPU.
const FLAG_CPU: i32 = 1;

fn call(command: i32) -> i64 {
    // SAFETY: membarrier takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

/// What this process may use after [`register`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// A full fence on every CPU that runs this process.
    pub fence: bool,
    /// The same, and every running restartable sequence of this process aborts.
    pub rseq: bool,
}

/// Registers the process for both commands and says which of them work.
pub fn register() -> Support {
    let offered = call(CMD_QUERY);
    if offered < 0 {
        return Support::default();
    }
    let has = |c: i32| offered & i64::from(c) != 0;
    Support {
        fence: has(CMD_PRIVATE_EXPEDITED) && call(CMD_REGISTER_PRIVATE_EXPEDITED) == 0,
        rseq: has(CMD_PRIVATE_EXPEDITED_RSEQ) && call(CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ) == 0,
    }
}

/// A full fence on every CPU that runs a thread of this process. True when it took effect.
pub fn fence_all() -> bool {
    call(CMD_PRIVATE_EXPEDITED) == 0
}

/// Aborts every restartable sequence of this process that is under way on another CPU. True when it took effect.
pub fn abort_sequences() -> bool {
    call(CMD_PRIVATE_EXPEDITED_RSEQ) == 0
}

/// As [`abort_sequences`], on one CPU only. True when it took effect, also where the CPU is offline or does not run this
/// process: then no sequence is under way there.
pub fn abort_sequences_on(cpu: usize) -> bool {
    // SAFETY: as in `call`.
    unsafe { libc::syscall(libc::SYS_membarrier, CMD_PRIVATE_EXPEDITED_RSEQ, FLAG_CPU, cpu as i32) == 0 }
}
