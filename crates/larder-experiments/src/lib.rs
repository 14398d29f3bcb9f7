//! What the programs behind `larder experiment` are made of. They link a heap, which the tool never does, and print JSON; the tool starts
//! them from `libexec/larder/`, puts their numbers beside a paper's, and draws.

pub mod loads;
pub mod marking;
