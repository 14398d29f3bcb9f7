//! The numbers of VEE'05 and HAB, as printed.

use serde_json::{Value, json};

/// VEE'05, table 1: cycles of the whole program.
pub const TABLE_1: [(&str, f64); 2] = [("threads", 6.636e9), ("CPUs", 6.718e9)];

/// How many objects that program allocates.
pub const TABLE_1_OBJECTS: f64 = 5.913e6;

/// VEE'05, table 1: seconds and instructions of the whole program.
pub const TABLE_1_WHOLE: [(f64, f64); 2] = [(21.205, 4.163e9), (22.004, 4.223e9)];

/// VEE'05, section 5: the instructions of an allocation, inlined, from the same two.
pub const ALLOCATION: [u32; 2] = [7, 17];

/// A row of table 2.
pub struct Row {
    /// What it counts.
    pub name: &'static str,
    /// Which counter of the buffers that is, and what to multiply it by.
    pub counter: (&'static str, f64),
    /// Which figure of a program's line that is, and what to multiply it by.
    pub printed: (&'static str, f64),
}

const fn row(name: &'static str, counter: (&'static str, f64), printed: (&'static str, f64)) -> Row {
    Row { name, counter, printed }
}

const MIB: f64 = 1.048_576;

/// The rows of table 2, in the paper's order.
pub const TABLE_2_ROWS: [Row; 16] = [
    row("collections of the young generation", ("collections", 1.0), ("young", 1.0)),
    row("of the old one", ("", 1.0), ("full", 1.0)),
    row("time in collections, ms", ("stopped_ns", 1e-6), ("pause_ms", 1.0)),
    row("collections with buffers of threads", ("collections_by_threads", 1.0), ("by_threads", 1.0)),
    row("collections with buffers of processors", ("collections_by_processors", 1.0), ("by_processors", 1.0)),
    row("buffers allocated", ("labs", 1.0), ("buffers", 1.0)),
    row("MB allocated in buffers", ("lab_bytes", 1e-6), ("buffer_mib", MIB)),
    row("transactions that succeeded", ("transactions_succeeded", 1.0), ("transactions", 1.0)),
    row("transactions that failed", ("transactions_failed", 1.0), ("failed", 1.0)),
    row("transactions that were invalid", ("transactions_invalid", 1.0), ("invalid", 1.0)),
    row("buffers sidelined", ("sidelined", 1.0), ("sidelined", 1.0)),
    row("MB in these", ("sidelined_bytes", 1e-6), ("sidelined_mib", MIB)),
    row("buffers sidelined and unused", ("sideline_unused", 1.0), ("sidelined_unused", 1.0)),
    row("MB in these", ("sideline_unused_bytes", 1e-6), ("sidelined_unused_mib", MIB)),
    row("buffers partly used", ("partly_used", 1.0), ("partly_used", 1.0)),
    row("MB unused in these", ("partly_used_bytes", 1e-6), ("unused_mib", MIB)),
];

/// A part of table 2 for 10 and 50 rooms: each row for threads, processors and flip mode.
pub type Table2 = [[[f64; 3]; 16]; 2];

/// Table 2 (a), the client.
pub const TABLE_2: Table2 = [
    [
        [176.2, 11.1, 13.1],
        [2.0, 2.1, 2.1],
        [143.5, 12.1, 13.6],
        [176.2, 0.0, 3.1],
        [0.0, 11.1, 10.0],
        [10486.5, 700.3, 663.3],
        [654.7, 33.7, 40.8],
        [0.0, 701.2, 528.3],
        [0.0, 1.7, 1.3],
        [0.0, 1.4, 1.0],
        [0.0, 2.6, 1.5],
        [0.0, 0.153, 0.094],
        [0.0, 0.0, 0.1],
        [0.0, 0.0, 0.0],
        [10687.3, 62.4, 182.3],
        [641.1, 0.937, 7.818],
    ],
    [
        [958.0, 55.3, 58.0],
        [2.0, 1.8, 1.8],
        [3195.7, 278.1, 283.0],
        [958.0, 0.0, 3.0],
        [0.0, 55.3, 55.0],
        [57990.7, 3044.3, 3005.8],
        [3623.7, 180.2, 187.2],
        [0.0, 3044.5, 2881.1],
        [0.0, 1.3, 1.1],
        [0.0, 0.7, 0.3],
        [0.0, 1.5, 2.0],
        [0.0, 0.094, 0.125],
        [0.0, 0.0, 0.00625],
        [0.0, 0.0, 0.0],
        [59342.8, 298.6, 423.2],
        [3576.6, 2.792, 9.262],
    ],
];

/// Table 2 (b), the server.
pub const TABLE_2_SERVER: Table2 = [
    [
        [177.7, 8.0, 8.3],
        [0.0, 0.0, 0.0],
        [155.6, 9.6, 10.8],
        [177.7, 0.0, 1.0],
        [0.0, 8.0, 7.3],
        [10565.7, 540.9, 463.5],
        [660.0, 25.7, 28.6],
        [0.0, 541.4, 409.4],
        [0.0, 0.9, 1.5],
        [0.0, 0.5, 0.7],
        [0.0, 1.4, 2.4],
        [0.0, 0.0875, 0.15],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [10765.8, 47.5, 95.3],
        [652.9, 0.7855, 3.4797],
    ],
    [
        [1297.8, 43.2, 44.7],
        [0.0, 0.0, 0.0],
        [4142.8, 155.2, 187.7],
        [1297.8, 0.0, 1.0],
        [0.0, 43.2, 43.7],
        [79499.2, 2430.7, 2336.9],
        [4968.4, 143.8, 145.7],
        [0.0, 2430.9, 2282.1],
        [0.0, 1.3, 1.1],
        [0.0, 0.8, 0.2],
        [0.0, 1.5, 1.3],
        [0.0, 0.09375, 0.8125],
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [80854.6, 257.6, 309.0],
        [4943.16, 4.5266, 7.1105],
    ],
];

/// A table of foreign allocations.
pub struct Foreign {
    /// Its number in the paper.
    pub table: &'static str,
    /// Sizes of the level's buffers.
    pub columns: &'static [&'static str],
    /// For each size of the threads' buffers, per cent in each column.
    pub rows: &'static [(&'static str, &'static [f64])],
}

/// HAB, table I: buffers of packages.
pub const TABLE_I: Foreign = Foreign {
    table: "I",
    columns: &["4 MB", "8 MB", "16 MB", "32 MB", "64 MB"],
    rows: &[
        ("none", &[0.32, 0.33, 0.51, 0.94, 1.93]),
        ("1 KiB", &[0.11, 0.06, 0.09, 0.05, 0.15]),
        ("4 KiB", &[0.11, 0.06, 0.06, 0.06, 0.19]),
        ("8 KiB", &[0.13, 0.10, 0.08, 0.10, 0.29]),
        ("16 KiB", &[0.10, 0.08, 0.11, 0.08, 0.12]),
        ("32 KiB", &[0.11, 0.08, 0.08, 0.11, 0.30]),
        ("64 KiB", &[0.22, 0.15, 0.16, 0.29, 0.45]),
        ("128 KiB", &[0.52, 0.47, 0.63, 1.31, 2.60]),
        ("growing", &[0.55, 0.47, 0.64, 1.10, 2.23]),
    ],
};

/// HAB, table II: buffers of cores.
pub const TABLE_II: Foreign = Foreign {
    table: "II",
    columns: &["512 KB", "1 MB", "8 MB", "16 MB"],
    rows: &[
        ("1 KiB", &[0.00, 0.01, 0.05, 0.07]),
        ("4 KiB", &[0.01, 0.01, 0.06, 0.15]),
        ("16 KiB", &[0.01, 0.02, 0.07, 0.13]),
        ("64 KiB", &[0.03, 0.03, 0.10, 0.17]),
        ("128 KiB", &[0.06, 0.05, 0.15, 0.26]),
        ("growing", &[f64::NAN, f64::NAN, 1.42, 2.81]),
    ],
};

/// VEE'05's tables, for the file of numbers: ours are beside them there, too. Its figures 9 and 10 have none.
pub fn vee05() -> Value {
    let contenders = ["threads", "processors", "flip"];
    let table_2 = |table: &Table2| -> Value {
        let part = |rooms: usize| -> Value {
            let rows = TABLE_2_ROWS.iter().zip(&table[rooms]);
            rows.map(|(row, values)| json!({ "name": row.name, "values": values })).collect()
        };
        json!({ "10 rooms": part(0), "50 rooms": part(1) })
    };
    let table_1: Value = TABLE_1
        .iter()
        .zip(&TABLE_1_WHOLE)
        .map(|((name, cycles), (seconds, instructions))| {
            json!({ "buffers_of": name, "seconds": seconds, "instructions": instructions, "cycles": cycles })
        })
        .collect();
    json!({
        "table 1": { "objects": TABLE_1_OBJECTS, "rows": table_1 },
        "table 2": { "contenders": contenders, "client": table_2(&TABLE_2), "server": table_2(&TABLE_2_SERVER) },
    })
}

/// HAB's tables, likewise. Its figures 2 and 3 have no numbers.
pub fn hab() -> Value {
    [&TABLE_I, &TABLE_II]
        .into_iter()
        .map(|table| {
            let rows: Value =
                table.rows.iter().map(|(name, values)| json!({ "tlab": name, "percent": values })).collect();
            json!({ "table": table.table, "columns": table.columns, "rows": rows })
        })
        .collect()
}
