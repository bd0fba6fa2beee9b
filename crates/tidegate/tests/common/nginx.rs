// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx as packaging/nginx.conf has it.

use super::gate::example;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Arguments of an nginx at `front` whose files are in `dir`. `replace`: what is something else in the example.
pub(crate) fn arguments(
    dir: &Path,
    replace: &[(&str, String)],
    front: SocketAddr,
) -> [OsString; 6] {
    let listen = ("listen 80;", format!("listen {front};"));
    let http = example("nginx.conf", &[replace, &[listen]].concat());
    let path = |file: &str| dir.join(file).display().to_string();
    let conf = format!(
        "user root;\nworker_processes 1;\npid {};\nerror_log {} warn;\nevents {{ worker_connections 4096; }}\nhttp {{\n\
         client_body_temp_path {};\nproxy_temp_path {};\nfastcgi_temp_path {};\nuwsgi_temp_path {};\nscgi_temp_path {};\n{http}}}\n",
        path("nginx.pid"),
        path("error.log"),
        path("t1"),
        path("t2"),
        path("t3"),
        path("t4"),
        path("t5"),
    );
    let file = dir.join("nginx.conf");
    fs::write(&file, conf).unwrap();
    ["-g".into(), "daemon off;".into(), "-p".into(), dir.into(), "-c".into(), file.into()]
}
