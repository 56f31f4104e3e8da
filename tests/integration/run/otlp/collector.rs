//! A collector that takes OTLP over HTTP, with faults on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{metric, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// How it responds.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// It takes everything.
    Takes,
    /// It sends that response verbatim.
    Answers(String),
    /// It reads, and never answers.
    Hangs,
}

/// One request, as it was received.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| &**value)
    }
}

pub struct Collector {
    address: String,
    behaviour: Arc<Mutex<Behaviour>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Collector {
    pub fn start(behaviour: Behaviour) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), behaviour)
    }

    pub fn on(listener: TcpListener, behaviour: Behaviour) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let (behaviour, requests) = (Arc::new(Mutex::new(behaviour)), Arc::default());
        let collector = Self { address, behaviour, requests };
        let (behaviour, requests) =
            (Arc::clone(&collector.behaviour), Arc::clone(&collector.requests));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (behaviour, requests) = (Arc::clone(&behaviour), Arc::clone(&requests));
                // The client may disconnect.
                std::thread::spawn(move || serve(stream, &behaviour, &requests));
            }
        });
        collector
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.parse::<std::net::SocketAddr>().unwrap().port()
    }

    pub fn set(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    pub fn requests(&self, path: &str) -> Vec<Request> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|request| request.path == path).cloned().collect()
    }

    /// Waits until the requests so far contain a value.
    pub fn wait_for<T>(&self, what: &str, find: impl Fn(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(found) = find(self) {
                return found;
            }
            assert!(Instant::now() < deadline, "the collector never got {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Every number of each metrics request, as `/metrics` names it.
    pub fn metrics(&self) -> Vec<Vec<(String, f64)>> {
        let requests = self.requests("/v1/metrics");
        requests.iter().map(|request| numbers(&request.body)).collect()
    }

    /// The source of the first metrics request: the texts among the resource's attributes.
    pub fn resource(&self) -> Option<BTreeMap<String, String>> {
        let request = self.requests("/v1/metrics").into_iter().next()?;
        let request = ExportMetricsServiceRequest::decode(&*request.body).unwrap();
        let attributes = request.resource_metrics.into_iter().next()?.resource?.attributes;
        let texts =
            attributes.into_iter().filter_map(|KeyValue { key, value, .. }| match value?.value? {
                any_value::Value::StringValue(text) => Some((key, text)),
                _ => None,
            });
        Some(texts.collect())
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        let requests = self.requests("/v1/traces");
        let decoded = requests
            .iter()
            .map(|request| ExportTraceServiceRequest::decode(&*request.body).unwrap());
        let scopes =
            decoded.flat_map(|request| request.resource_spans).flat_map(|spans| spans.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }
}

fn serve(
    stream: TcpStream,
    behaviour: &Mutex<Behaviour>,
    requests: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let behaviour = behaviour.lock().unwrap().clone();
    requests.lock().unwrap().push(Request { path, headers, body });
    let answer = match behaviour {
        Behaviour::Takes => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(),
        Behaviour::Answers(answer) => answer,
        Behaviour::Hangs => {
            // Until the client closes.
            reader.read_to_end(&mut Vec::new())?;
            return Ok(());
        }
    };
    (&stream).write_all(answer.as_bytes())
}

/// Names with labels, as in `/metrics`; histograms part by part.
fn numbers(body: &[u8]) -> Vec<(String, f64)> {
    let request = ExportMetricsServiceRequest::decode(body).unwrap();
    let scopes = request.resource_metrics.into_iter().flat_map(|metrics| metrics.scope_metrics);
    let mut numbers = Vec::new();
    for metric in scopes.flat_map(|scope| scope.metrics) {
        let points = match metric.data.unwrap() {
            metric::Data::Gauge(gauge) => gauge.data_points,
            metric::Data::Sum(sum) => sum.data_points,
            metric::Data::Histogram(histogram) => {
                let point = &histogram.data_points[0];
                numbers.push((format!("{}_count", metric.name), point.count as f64));
                numbers.push((format!("{}_sum", metric.name), point.sum.unwrap()));
                let mut within = 0;
                let bounds = point.explicit_bounds.iter().map(|bound| format!("{bound:?}"));
                let bounds = bounds.chain(["+Inf".to_owned()]);
                for (bound, count) in bounds.zip(&point.bucket_counts) {
                    within += count;
                    let name = format!("{}_bucket{{le=\"{bound}\"}}", metric.name);
                    numbers.push((name, within as f64));
                }
                continue;
            }
            other => panic!("{other:?}"),
        };
        for point in points {
            let Some(number_data_point::Value::AsDouble(value)) = point.value else { panic!() };
            numbers.push((format!("{}{}", metric.name, labels(&point.attributes)), value));
        }
    }
    numbers
}

fn labels(attributes: &[KeyValue]) -> String {
    if attributes.is_empty() {
        return String::new();
    }
    let labels = attributes.iter().map(|pair| {
        let any_value::Value::StringValue(value) = value_of(pair).unwrap() else { panic!() };
        format!("{}=\"{}\"", pair.key, value.replace('\\', "\\\\").replace('"', "\\\""))
    });
    format!("{{{}}}", labels.collect::<Vec<_>>().join(","))
}

fn value_of(pair: &KeyValue) -> Option<any_value::Value> {
    pair.value.as_ref()?.value.clone()
}

/// The attribute of a span with that key.
pub fn attribute(span: &Span, key: &str) -> Option<any_value::Value> {
    value_of(span.attributes.iter().find(|pair| pair.key == key)?)
}

/// The same as text.
pub fn text(span: &Span, key: &str) -> String {
    match attribute(span, key) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::DoubleValue(number)) => number.to_string(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::BoolValue(flag)) => flag.to_string(),
        _ => String::new(),
    }
}
