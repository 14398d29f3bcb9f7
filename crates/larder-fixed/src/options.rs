//! What a door may choose before the heap exists.

pub use larder_trace::window::{Form, usual as usual_scan};
use larder_units::Bytes;

/// Choices at initialisation.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Pointers into the middle of an object keep it also when they are in the heap or in static data. Then a pointer
    /// one past the end counts too, so every object is a byte longer.
    pub all_interior_pointers: bool,
    /// Heap that may be filled before the first cycle.
    pub initial_heap: Bytes,
    /// Largest heap; 0 for none.
    pub max_heap: Bytes,
    /// See [`larder_policy::pacing::HeapFacts::free_space_divisor`].
    pub free_space_divisor: usize,
    /// Number of markers; `None` lets the CPUs decide.
    pub markers: Option<usize>,
    /// The signal that stops threads.
    pub suspend_signal: i32,
    /// How blocks are shared; `LARDER_SHARING` and `LARDER_OWNERS` win over it.
    pub sharing: crate::sharing::Setting,
    /// Stress: a cycle at every n-th refill.
    pub collect_every: Option<u64>,
    /// The widest vector instructions that markers may use.
    pub widest_scan: Form,
    /// Optimizations of marking that are left out; `LARDER_ABLATE` wins over it.
    pub ablation: crate::ablation::Ablation,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            all_interior_pointers: true,
            initial_heap: Bytes(0),
            max_heap: Bytes(0),
            free_space_divisor: 3,
            markers: None,
            suspend_signal: libc::SIGPWR,
            sharing: crate::sharing::Setting::default(),
            collect_every: None,
            widest_scan: usual_scan(),
            ablation: crate::ablation::Ablation::NONE,
        }
    }
}
