//! Random operations against a model, with the verifier on every cycle.
//!
//! A run that fails names its seed; `LARDER_SEED=N cargo test -p larder-testkit --test fuzz` repeats it.

use larder_fixed::options::Form;
use larder_fixed::stats;
use larder_testkit::fuzz::{Plan, run};
use larder_testkit::{WITHOUT_SEQUENCES, beside, for_each_seed};

#[test]
fn one_thread() {
    for_each_seed("one_thread", &[], |seed| run(&Plan::new(1, seed, 6000)));
}

#[test]
fn two_threads_with_exact_marks() {
    for_each_seed("two_threads_with_exact_marks", &[], |seed| {
        run(&Plan { finalizers: false, collect_every: Some(40), ..Plan::new(2, seed, 3000) });
    });
}

#[test]
fn eight_threads_where_only_bases_count_in_the_heap() {
    for_each_seed("eight_threads_where_only_bases_count_in_the_heap", &[], |seed| {
        run(&Plan { all_interior_pointers: false, collect_every: Some(60), ..Plan::new(8, seed, 1000) });
    });
}

/// With no better form of vector instructions than this.
fn narrower(name: &str, widest_scan: Form) {
    for_each_seed(name, &[], |seed| {
        let plan = Plan { widest_scan, all_interior_pointers: seed % 2 == 0, ..Plan::new(4, seed, 1500) };
        run(&Plan { finalizers: false, collect_every: Some(40), ..plan });
    });
}

#[test]
fn four_threads_scanned_without_vectors() {
    narrower("four_threads_scanned_without_vectors", Form::Portable);
}

#[test]
fn four_threads_scanned_with_avx2_at_most() {
    narrower("four_threads_scanned_with_avx2_at_most", Form::Avx2);
}

/// Where there is nothing wider, this is usual.
#[test]
fn four_threads_scanned_with_avx2_in_volleys() {
    narrower("four_threads_scanned_with_avx2_in_volleys", Form::Avx2Volleys);
}

#[test]
fn four_threads_scanned_with_avx512_at_most() {
    narrower("four_threads_scanned_with_avx512_at_most", Form::Avx512);
}

/// Words are looked up eight at a time, which is usual on some processors only.
#[test]
fn four_threads_scanned_in_volleys() {
    narrower("four_threads_scanned_in_volleys", Form::Avx512Volleys);
}

#[test]
fn eight_threads_and_four_markers_under_stress() {
    for_each_seed("eight_threads_and_four_markers_under_stress", &[], |seed| {
        run(&Plan { collect_every: Some(15), markers: Some(4), ..Plan::new(8, seed, 600) });
        beside::expect_cycles(50);
    });
}

#[test]
fn sixty_four_threads() {
    for_each_seed("sixty_four_threads", &[], |seed| {
        run(&Plan { collect_every: Some(100), ..Plan::new(64, seed, 250) });
        beside::expect_cycles(20);
    });
}

#[test]
fn eight_threads_without_sequences() {
    for_each_seed("eight_threads_without_sequences", &[WITHOUT_SEQUENCES], |seed| {
        run(&Plan { collect_every: Some(30), ..Plan::new(8, seed, 800) });
        assert!(stats::by_thread());
    });
}

#[test]
fn sixty_four_threads_without_sequences() {
    for_each_seed("sixty_four_threads_without_sequences", &[WITHOUT_SEQUENCES], |seed| {
        run(&Plan { collect_every: Some(200), ..Plan::new(64, seed, 200) });
        assert!(stats::by_thread());
    });
}
