// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What packaging/kubernetes says has the fields that Kubernetes, Envoy Gateway, Istio and the Gateway API know.
//!
//! The schemas in tests/kubernetes are those of Kubernetes and of the CRDs, of the fields that are used: a field that is
//! misspelt, or of another type, is in none.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

use serde_json::Value;
use tidegate_config::{Registry, parse};

const ENVOY_GATEWAY: &str = include_str!("../../../packaging/kubernetes/envoy-gateway.yaml");
const ISTIO: &str = include_str!("../../../packaging/kubernetes/istio.yaml");
const ENVOY: &str = include_str!("../../../packaging/envoy.yaml");
const INGRESS_NGINX: &str = include_str!("../../../packaging/kubernetes/ingress-nginx.yaml");
const GATEWAY: &str = include_str!("../../../packaging/kubernetes/gateway.yaml");
const NODE: &str = include_str!("../../../packaging/kubernetes/node.yaml");

/// By kind.
const SCHEMAS: [(&str, &str); 11] = [
    ("SecurityPolicy", include_str!("kubernetes/SecurityPolicy.json")),
    ("EnvoyProxy", include_str!("kubernetes/EnvoyProxy.json")),
    ("EnvoyPatchPolicy", include_str!("kubernetes/EnvoyPatchPolicy.json")),
    ("ReferenceGrant", include_str!("kubernetes/ReferenceGrant.json")),
    ("AuthorizationPolicy", include_str!("kubernetes/AuthorizationPolicy.json")),
    ("EnvoyFilter", include_str!("kubernetes/EnvoyFilter.json")),
    ("MeshConfig", include_str!("kubernetes/MeshConfig.json")),
    ("DaemonSet", include_str!("kubernetes/DaemonSet.json")),
    ("Deployment", include_str!("kubernetes/Deployment.json")),
    ("Service", include_str!("kubernetes/Service.json")),
    ("NetworkPolicy", include_str!("kubernetes/NetworkPolicy.json")),
];
/// Of the other kinds of Kubernetes itself.
const PLAIN: [(&str, &str); 3] =
    [("Ingress", "networking.k8s.io/v1"), ("ConfigMap", "v1"), ("Namespace", "v1")];
/// Annotations of ingress-nginx 1.15 (internal/ingress/annotations/authreq) that are used.
const ANNOTATIONS: [&str; 3] = ["auth-url", "auth-proxy-set-headers", "auth-response-headers"];

fn schema(kind: &str) -> Option<Value> {
    let found = SCHEMAS.iter().find(|(of, _)| *of == kind)?;
    Some(serde_json::from_str(found.1).unwrap())
}

fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n").map(|text| serde_saphyr::from_str(text).unwrap()).collect()
}

/// What is wrong with a value, at its path.
fn faults(value: &Value, schema: &Value, path: &str, out: &mut Vec<String>) {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        // Of Envoy's own schema, which the CRD does not know.
        return;
    }
    let is = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        _ => false,
    };
    if !is {
        return out.push(format!("{path}: {value} is no {}", schema["type"]));
    }
    if schema["enum"].as_array().is_some_and(|allowed| !allowed.contains(value)) {
        out.push(format!("{path}: {value} is none of {}", schema["enum"]));
    }
    let number = value.as_f64();
    let outside = |bound: &str, beyond: fn(f64, f64) -> bool| {
        number.zip(schema[bound].as_f64()).is_some_and(|(n, b)| beyond(n, b))
    };
    if outside("minimum", |n, b| n < b) || outside("maximum", |n, b| n > b) {
        out.push(format!("{path}: {value} is out of range"));
    }
    for required in schema["required"].as_array().into_iter().flatten() {
        if value.get(required.as_str().unwrap()).is_none() {
            out.push(format!("{path}: {required} is missing"));
        }
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        let of = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
        match of {
            Some(schema) => faults(value, schema, &format!("{path}.{name}"), out),
            None => out.push(format!("{path}: {name} is unknown")),
        }
    }
    for (at, value) in value.as_array().into_iter().flatten().enumerate() {
        faults(value, &schema["items"], &format!("{path}[{at}]"), out);
    }
}

fn check(document: &Value) -> Vec<String> {
    let (kind, version) =
        (document["kind"].as_str().unwrap(), document["apiVersion"].as_str().unwrap());
    let mut out = Vec::new();
    match schema(kind) {
        Some(schema) => {
            assert_eq!(schema["apiVersion"], version, "{kind}");
            faults(&document["spec"], &schema, kind, &mut out);
        }
        None => assert!(PLAIN.contains(&(kind, version)), "{kind} {version}"),
    }
    out
}

#[test]
fn the_examples_are_of_the_schemas() {
    for (text, kinds) in [
        (
            ENVOY_GATEWAY,
            &["SecurityPolicy", "EnvoyProxy", "EnvoyPatchPolicy", "ReferenceGrant"][..],
        ),
        (ISTIO, &["ConfigMap", "AuthorizationPolicy", "EnvoyFilter"]),
        (INGRESS_NGINX, &["Ingress", "ConfigMap", "ConfigMap"]),
        (NODE, &["Namespace", "ConfigMap", "DaemonSet"]),
        (GATEWAY, &["Namespace", "ConfigMap", "Deployment", "Service", "NetworkPolicy"]),
    ] {
        let documents = documents(text);
        let found: Vec<&str> = documents.iter().map(|d| d["kind"].as_str().unwrap()).collect();
        assert_eq!(found, kinds);
        for document in &documents {
            assert_eq!(check(document), Vec::<String>::new());
        }
    }
}

#[test]
fn the_providers_of_istio_are_those_that_its_policies_name() {
    let documents = documents(ISTIO);
    let mesh: Value =
        serde_saphyr::from_str(documents[0]["data"]["mesh"].as_str().unwrap()).unwrap();
    let mut out = Vec::new();
    faults(&mesh, &schema("MeshConfig").unwrap(), "mesh", &mut out);
    assert_eq!(out, Vec::<String>::new());
    let provider = |at: usize| &mesh["extensionProviders"][at];
    assert_eq!(documents[1]["spec"]["provider"]["name"], provider(0)["name"]);
    assert_eq!(provider(0)["envoyExtAuthzGrpc"]["failOpen"], true);
}

/// The access log of packaging/envoy.yaml, which a test runs against Envoy.
fn envoys_log() -> Value {
    let envoy: Value = serde_saphyr::from_str(ENVOY).unwrap();
    let chain = &envoy["static_resources"]["listeners"][0]["filter_chains"][0];
    chain["filters"][0]["typed_config"]["access_log"][0].clone()
}

/// What no CRD knows is what Envoy is tested with: of Istio the whole log, of Envoy Gateway its interval.
#[test]
fn reports_are_flushed_as_in_envoys_own_example() {
    const INTERVAL: &str = "/typed_config/common_config/buffer_flush_interval";
    let mut log = envoys_log();
    let interval = log.pointer(INTERVAL).unwrap().clone();
    let seconds: f64 = interval.as_str().unwrap().strip_suffix('s').unwrap().parse().unwrap();
    assert!((0.001..=0.1).contains(&seconds), "{seconds} s");

    let (istio, gateway) = (documents(ISTIO), documents(ENVOY_GATEWAY));
    let patch = &istio[2]["spec"]["configPatches"][0]["patch"]["value"];
    let mesh: Value = serde_saphyr::from_str(istio[0]["data"]["mesh"].as_str().unwrap()).unwrap();
    let asked = &mesh["extensionProviders"][0]["envoyExtAuthzGrpc"];
    let (service, port) = (asked["service"].as_str().unwrap(), &asked["port"]);
    let cluster = "/typed_config/common_config/grpc_service/envoy_grpc/cluster_name";
    *log.pointer_mut(cluster).unwrap() = format!("outbound|{port}||{service}").into();
    assert_eq!(patch["typed_config"]["access_log"], Value::Array(vec![log]));

    let operation = &gateway[2]["spec"]["jsonPatches"][0]["operation"];
    let path = operation["path"].as_str().unwrap();
    let in_log = path.strip_prefix("/default_filter_chain/filters/0/typed_config/access_log/0");
    assert_eq!((in_log, &operation["value"]), (Some(INTERVAL), &interval));
}

#[test]
fn ingress_nginx_asks_by_annotations_that_it_has() {
    let documents = documents(INGRESS_NGINX);
    let annotations = documents[0]["metadata"]["annotations"].as_object().unwrap();
    let mut names: Vec<&str> = annotations
        .keys()
        .map(|name| name.strip_prefix("nginx.ingress.kubernetes.io/").unwrap())
        .collect();
    names.sort_unstable();
    let mut known = ANNOTATIONS;
    known.sort_unstable();
    assert_eq!(names, known);
    let asked = documents[1]["data"].as_object().unwrap();
    for header in ["X-Tidegate-Method", "X-Tidegate-Uri", "X-Tidegate-Host", "X-Tidegate-Client"] {
        assert!(asked.contains_key(header), "{header}");
    }
}

/// The command reads the file that the ConfigMap brings, and the probes ask where the daemon listens. What is written to
/// the disk lies in a volume. Nothing else of it is only a name that has to be right.
#[test]
fn the_daemon_on_a_node_finds_what_it_is_given() {
    let documents = documents(NODE);
    let files = documents[1]["data"].as_object().unwrap();
    let registry = Registry::new(["fresh_first"], ["default"]);
    let config = parse(files["tidegate.yaml"].as_str().unwrap(), &registry).unwrap();
    let pod = &documents[2]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let mounted = |path: &str| {
        let mounts = container["volumeMounts"].as_array().unwrap();
        let mount = mounts.iter().find(|of| path.starts_with(of["mountPath"].as_str().unwrap()));
        let name = &mount.unwrap()["name"];
        let volumes = pod["volumes"].as_array().unwrap();
        volumes.iter().find(|of| of["name"] == *name).unwrap().clone()
    };
    let command = container["command"].as_array().unwrap();
    let path = command.last().unwrap().as_str().unwrap();
    assert_eq!(mounted(path)["configMap"]["name"], documents[1]["metadata"]["name"]);
    assert!(path.ends_with("/tidegate.yaml"), "{path}");
    assert!(mounted(config.daemon.socket.to_str().unwrap())["emptyDir"].is_object());
    assert_eq!(mounted(config.daemon.pins.to_str().unwrap())["hostPath"]["path"], "/sys/fs/bpf");
    let http = config.daemon.http.0.unwrap();
    for (probe, page) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let get = &container[probe]["httpGet"];
        assert_eq!((&get["host"], &get["path"]), (&http.ip().to_string().into(), &page.into()));
        assert_eq!(get["port"], http.port());
    }
    assert_eq!((&pod["hostNetwork"], pod.get("hostPID")), (&true.into(), None));
    let namespaces = documents[1..].iter().map(|of| &of["metadata"]["namespace"]);
    assert!(namespaces.into_iter().all(|of| *of == documents[0]["metadata"]["name"]));
}

/// The gateway listens where its Service, its probes and its NetworkPolicy say, and where the other examples ask.
#[test]
fn the_gateway_is_found_by_those_who_ask() {
    let documents = documents(GATEWAY);
    let registry = Registry::new(["fresh_first"], ["default"]);
    let file = documents[1]["data"]["tidegate.yaml"].as_str().unwrap();
    let config = parse(file, &registry).unwrap();
    let asked = config.gateways[0].listen.to_string();
    let port: u16 = asked.rsplit(':').next().unwrap().parse().unwrap();
    assert_eq!(documents[3]["spec"]["ports"][0]["targetPort"], port);
    let service = &documents[3]["metadata"];
    let name = format!("{}.{}", service["name"], service["namespace"]).replace('"', "");
    assert!(ISTIO.contains(&format!("service: {name}.svc")), "{name}");
    assert!(
        ISTIO.contains(&format!("port: {port}"))
            && ENVOY_GATEWAY.contains(&format!("port: {port}"))
    );
    let allowed = &documents[4]["spec"]["ingress"];
    let http = config.daemon.http.0.unwrap();
    assert_eq!(
        (&allowed[0]["ports"][0]["port"], &allowed[1]["ports"][0]["port"]),
        (&port.into(), &http.port().into())
    );
    let pod = &documents[2]["spec"]["template"];
    for (probe, page) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let get = &pod["spec"]["containers"][0][probe]["httpGet"];
        assert_eq!((&get["port"], &get["path"]), (&http.port().into(), &page.into()));
    }
    let labels = &pod["metadata"]["labels"];
    assert_eq!(*labels, documents[3]["spec"]["selector"]);
    for of in [&documents[2]["spec"]["selector"], &documents[4]["spec"]["podSelector"]] {
        assert_eq!(of["matchLabels"], *labels);
    }
}

/// The check itself finds what is wrong.
#[test]
fn what_is_wrong_is_found() {
    for (right, wrong) in [
        ("failOpen: true", "failOpn: true"),
        ("failOpen: true", "failOpen: yes please"),
        ("port: 9470", "port: 70000"),
        ("      name: shop\n", ""),
        ("- type: ALS", "- type: Als"),
        ("    timeout: 200ms", "    timeout: 200"),
        ("        op: add", "        op: put"),
    ] {
        assert!(ENVOY_GATEWAY.contains(right), "{right}");
        let documents = documents(&ENVOY_GATEWAY.replacen(right, wrong, 1));
        let faults: Vec<String> = documents.iter().flat_map(check).collect();
        assert_eq!(faults.len(), 1, "{wrong}: {faults:?}");
    }
}
