#!/usr/bin/env bash
# Tomcat 10.1.34 and Jetty 12.0.16: once a file is replaced, its new bytes have the old ETag, date and length for a while.
#
# Tomcat's default servlet keeps what it knows of a file for 5 seconds, and Jetty's ResourceHandler for a second; the
# bytes are read anew for each request, in Tomcat those of files above 512 KiB. So parts of two versions have one ETag,
# one date and one length, and a client that compares these joins them; if the new file is shorter, a whole download
# has the new bytes and the old Content-Length, and breaks off.
# Undertow 2.3.18 and Vert.x 4.5.11 have the new date and length at once.
# Expected: the ETag and length of the file whose bytes are sent. Needs a JDK and Maven.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill "${server:-}" 2> /dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
cat > pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId>
  <artifactId>finding</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.tomcat.embed</groupId>
      <artifactId>tomcat-embed-core</artifactId>
      <version>10.1.34</version>
    </dependency>
    <dependency>
      <groupId>org.eclipse.jetty</groupId>
      <artifactId>jetty-server</artifactId>
      <version>12.0.16</version>
    </dependency>
  </dependencies>
</project>
XML
cat > Web.java <<'JAVA'
import java.net.InetSocketAddress;
import java.nio.file.Path;
import org.apache.catalina.startup.Tomcat;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.handler.ResourceHandler;
import org.eclipse.jetty.util.resource.ResourceFactory;

public class Web {
    public static void main(String[] arguments) throws Exception {
        String root = arguments[0];
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(root + "/../tomcat");
        tomcat.setPort(Integer.parseInt(arguments[1]));
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        var context = tomcat.addContext("", root);
        Tomcat.addServlet(context, "files", "org.apache.catalina.servlets.DefaultServlet");
        context.addServletMappingDecoded("/", "files");
        tomcat.start();
        Server jetty = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[2])));
        ResourceHandler files = new ResourceHandler();
        files.setEtags(true);
        files.setBaseResource(ResourceFactory.of(files).newResource(Path.of(root)));
        jetty.setHandler(files);
        jetty.start();
    }
}
JAVA
mvn -q -B dependency:copy-dependencies -DoutputDirectory=jars > mvn.log 2>&1 || { cat mvn.log; exit 1; }
mkdir files
read -r tomcat jetty < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*[each.getsockname()[1] for each in sockets])')
java -Xmx256m -cp "jars/*" Web.java "$folder/files" "$tomcat" "$jetty" > java.log 2>&1 &
server=$!
python3 - "$folder/files" "$tomcat" "$jetty" <<'PYTHON'
import http.client
import os
import pathlib
import sys
import time

root = pathlib.Path(sys.argv[1])


def put(name, data):
    (root / "new").write_bytes(data)
    os.replace(root / "new", root / name)


def part(port, name):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", f"/{name}", headers={"Range": "bytes=0-1"})
    response = connection.getresponse()
    found = response.read(), response.headers["ETag"], response.headers["Content-Range"]
    connection.close()
    return found


def wait_for(port):
    ends = time.monotonic() + 60
    while True:
        try:
            return part(port, "none")
        except OSError:
            assert time.monotonic() < ends, "the server does not start"
            time.sleep(0.2)


for server, port, least_s in (("Tomcat", int(sys.argv[2]), 2.0), ("Jetty", int(sys.argv[3]), 0.0)):
    wait_for(port)
    name = f"{server}.bin"
    put(name, b"a" * 3_000_000)
    old = part(port, name)
    assert old[0] == b"aa" and old[2] == "bytes 0-1/3000000", old
    put(name, b"b" * 2_000_000)
    replaced, last, found = time.monotonic(), None, part(port, name)
    while found[1:] == old[1:]:
        assert found[0] == b"bb", found
        last = time.monotonic() - replaced
        time.sleep(0.05)
        found = part(port, name)
    assert found[0] == b"bb" and found[1] != old[1] and found[2] == "bytes 0-1/2000000", found
    assert last is not None and last >= least_s, f"otherwise now: {server} tells at once that the file is another one"
    print(f"{server}: for {last:.1f} s new bytes with {old[1]} and {old[2]}, then with {found[1]} and {found[2]}")
PYTHON
