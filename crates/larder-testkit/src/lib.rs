//! What Larder's tests are made of: a process of its own for each test, random numbers, patterns, threads, a heap
//! verifier, and a generator of heap operations.
//!
//! There is one heap in a process, and tests change its settings, kill threads and fork; so each test runs in a child
//! process that executes just this test ([`in_child`]).

use std::process::{Command, ExitStatus};

pub mod beside;
pub mod crowd;
pub mod fuzz;
pub mod handler;
pub mod mutator;
pub mod pattern;
pub mod stop;
pub mod table;
pub mod verifier;

/// Environment variable that says that this process is the child of [`in_child`].
const CHILD: &str = "LARDER_TEST_CHILD";

/// Seconds after which a child is killed: a hang must become a failure, and a machine with much else to do must not. Soak tests take their
/// own time on top.
const DEADLINE_SECONDS: u64 = 1800;

/// Environment of a process without restartable sequences: buffers then belong to threads.
pub const WITHOUT_SEQUENCES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.pthread.rseq=0");

/// Runs `body` in a process of its own: the test binary is started again with only the calling test, and must end well.
///
/// `name` is the test's path as `--exact` takes it; `environment` is added to the child's.
pub fn in_child(name: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(name) {
        kill_after(DEADLINE_SECONDS + soak_seconds().unwrap_or(0));
        return body();
    }
    let (status, text) = in_process_of_its_own(name, environment);
    assert!(status.success() && text.contains("1 passed"), "{name} in its own process: {status}\n{text}");
}

/// As [`in_child`], for a body that must stop its process with a line that contains `line`.
pub fn dies_in_child(name: &str, environment: &[(&str, &str)], line: &str, body: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(name) {
        kill_after(DEADLINE_SECONDS);
        return body();
    }
    let (status, text) = in_process_of_its_own(name, environment);
    assert!(!status.success() && text.contains(line), "{name} should have died of \"{line}\": {status}\n{text}");
}

fn in_process_of_its_own(name: &str, environment: &[(&str, &str)]) -> (ExitStatus, String) {
    let program = std::env::current_exe().expect("a test knows its own path");
    let output = Command::new(program)
        .args(["--exact", name, "--nocapture", "--test-threads=1", "--include-ignored"])
        .env(CHILD, name)
        // A panic on a thread of the heap aborts, with a long trace of every frame otherwise.
        .env("RUST_BACKTRACE", "0")
        .envs(environment.iter().copied())
        .output()
        .expect("the test binary can be started again");
    let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status, text)
}

/// Has the kernel kill this process when a test should long be over: for test programs that [`in_child`] does not start.
pub fn kill_after_deadline() {
    kill_after(DEADLINE_SECONDS);
}

/// Has the kernel kill this process (not its fork children) after so many seconds.
fn kill_after(seconds: u64) {
    // SAFETY: both records are initialised; the timer lives as long as the process.
    unsafe {
        let mut event: libc::sigevent = core::mem::zeroed();
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGKILL;
        let mut timer = core::mem::zeroed();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        let mut time: libc::itimerspec = core::mem::zeroed();
        time.it_value.tv_sec = seconds as libc::time_t;
        assert_eq!(libc::timer_settime(timer, 0, &time, core::ptr::null_mut()), 0);
    }
}

/// How long a soak test may run: `cargo xtask soak` says so for all soak tests of the crate together.
pub fn soak_seconds() -> Option<u64> {
    std::env::var("LARDER_SOAK_SECONDS").ok()?.parse().ok()
}

/// The seed that the environment asks for (`LARDER_SEED`), to repeat a failed run.
pub fn asked_seed() -> Option<u64> {
    std::env::var("LARDER_SEED").ok()?.parse().ok()
}

/// As [`in_child`], one process after another, each with a seed of its own: fixed ones, and the one that the environment asks for.
pub fn for_each_seed(name: &str, environment: &[(&str, &str)], body: impl Fn(u64)) {
    const SEED: &str = "LARDER_TEST_SEED";
    if let Ok(seed) = std::env::var(SEED) {
        return in_child(name, environment, || body(seed.parse().unwrap()));
    }
    for seed in [1, 2, 3].into_iter().chain(asked_seed()) {
        let seed = seed.to_string();
        let environment: Vec<_> = environment.iter().copied().chain([(SEED, seed.as_str())]).collect();
        in_child(name, &environment, || unreachable!("the child has a seed"));
    }
}

/// A small random number generator (xorshift64*), for reproducible sequences of operations.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose sequence depends only on `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 33) as usize % n
    }
}
