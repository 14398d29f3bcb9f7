//! Structures made of areas and sequences. Each lets another thread take an index's content over.
//!
//! All of them can be statics, are mapped when first used, and cost memory for the indices that were used only.

mod bounded_stack;
mod bump_region;
mod counter;
mod free_list;
mod shared;

pub use bounded_stack::{BoundedStack, Full};
pub use bump_region::{BumpRegion, Region};
pub use counter::Counter;
pub use free_list::{Chain, FreeList, Link};
pub use shared::Shared;
