//! A trace as a viewer reads it.

use serde_json::Value;

/// A slice of a track, in nanoseconds.
pub struct Slice {
    pub pid: u32,
    pub track: u64,
    pub name: String,
    pub start: u64,
    pub end: u64,
    pub args: Value,
}

/// The slices and the counters of a trace.
pub struct Timeline {
    slices: Vec<Slice>,
    events: Vec<Value>,
}

impl Timeline {
    /// Reads the text of a file.
    pub fn read(text: &str) -> Self {
        let events: Vec<Value> = serde_json::from_str(text).expect("a trace is a JSON array");
        events.iter().for_each(check_format);
        let slices = events.iter().filter(|event| event["ph"] == "X").map(Slice::new).collect();
        Timeline { slices, events }
    }

    /// The slices of a process with a name, in their order.
    pub fn slices(&self, pid: u32, name: &str) -> Vec<&Slice> {
        self.slices.iter().filter(|slice| slice.pid == pid && slice.name == name).collect()
    }

    /// The values of a counter, in their order.
    pub fn counter(&self, pid: u32, name: &str) -> Vec<u64> {
        let is_it = |event: &&Value| event["ph"] == "C" && event["pid"] == pid && event["name"] == name;
        let value = |event: &Value| event["args"].as_object().unwrap().values().next().unwrap().as_u64().unwrap();
        self.events.iter().filter(is_it).map(value).collect()
    }

    /// What every trace keeps to: slices of a track lie apart or in one another, phases lie in a cycle, times to stop in a
    /// pause, and each track has a name.
    pub fn check(&self) {
        for slice in &self.slices {
            for other in self.slices.iter().filter(|other| (other.pid, other.track) == (slice.pid, slice.track)) {
                let apart = slice.end <= other.start || other.end <= slice.start;
                assert!(apart || slice.is_in(other) || other.is_in(slice), "{} crosses {}", slice.text(), other.text());
            }
            let is_cycle = |slice: &Slice| slice.name.ends_with(" cycle");
            let is_pause = |slice: &Slice| slice.name == "pause";
            let holders: Vec<&Slice> = match slice.track {
                1 if !is_pause(slice) => self.slices.iter().filter(|other| is_pause(other)).collect(),
                2 if !is_cycle(slice) => self.slices.iter().filter(|other| is_cycle(other)).collect(),
                _ => continue,
            };
            let held = holders.iter().any(|holder| holder.pid == slice.pid && slice.is_in(holder));
            assert!(held, "{} lies in nothing", slice.text());
        }
        for slice in &self.slices {
            let names = self.events.iter().filter(|event| {
                event["name"] == "thread_name" && event["pid"] == slice.pid && event["tid"] == slice.track
            });
            assert_eq!(names.count(), 1, "{}", slice.text());
        }
    }
}

/// Members that an event may have, by the published description of Chrome's trace event format.
const MEMBERS: [&str; 12] = ["name", "cat", "ph", "ts", "tts", "pid", "tid", "dur", "tdur", "args", "id", "s"];

/// What that description asks of an event of each of the kinds that are written. A viewer drops events that are otherwise, without a word.
fn check_format(event: &Value) {
    let members = event.as_object().unwrap_or_else(|| panic!("not an object: {event}"));
    for member in members.keys() {
        assert!(MEMBERS.contains(&member.as_str()), "{member}: {event}");
    }
    let text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    // Viewers read both numbers into 32 bits, and Perfetto takes the first process for its own idle one.
    let number = |member: &str| members.get(member).and_then(Value::as_u64).is_some_and(|n| n <= i32::MAX as u64);
    let time = |member: &str| members.get(member).and_then(Value::as_f64).is_some_and(|t| t.is_finite() && t >= 0.0);
    let args = members.get("args").map(|args| args.as_object().unwrap_or_else(|| panic!("args: {event}")));
    assert!(text(&event["name"]) && number("pid") && event["pid"] != 0, "{event}");
    let is_right = match event["ph"].as_str() {
        Some("X") => number("tid") && time("ts") && time("dur"),
        Some("i") => number("tid") && time("ts") && matches!(event["s"].as_str(), Some("g" | "p" | "t")),
        Some("C") => time("ts") && args.is_some_and(|args| !args.is_empty() && args.values().all(Value::is_number)),
        Some("M") => match event["name"].as_str() {
            Some("process_name") => text(&event["args"]["name"]),
            Some("thread_name") => number("tid") && text(&event["args"]["name"]),
            Some("thread_sort_index") => number("tid") && event["args"]["sort_index"].is_i64(),
            _ => false,
        },
        _ => false,
    };
    assert!(is_right, "not as the format has it: {event}");
}

impl Slice {
    fn new(event: &Value) -> Self {
        let nanos = |value: &Value| (value.as_f64().expect("a time is a number") * 1000.0).round() as u64;
        let start = nanos(&event["ts"]);
        Slice {
            pid: event["pid"].as_u64().unwrap() as u32,
            track: event["tid"].as_u64().unwrap(),
            name: event["name"].as_str().unwrap().to_owned(),
            start,
            end: start + nanos(&event["dur"]),
            args: event["args"].clone(),
        }
    }

    fn is_in(&self, other: &Slice) -> bool {
        other.start <= self.start && self.end <= other.end
    }

    fn text(&self) -> String {
        format!("{} of {} at {} to {}", self.name, self.pid, self.start, self.end)
    }
}
