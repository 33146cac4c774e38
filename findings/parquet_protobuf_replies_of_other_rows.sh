#!/usr/bin/env bash
# parquet-java 1.17.0: its Protobuf writer stores trees so that pyarrow 26.0.1 gives their leaves to other rows.
#
# A message that contains itself, as a comment does its replies, is cut after five levels (parquet.proto.maxRecursion):
# what lies below is kept as bytes. The field is "repeated", but the writer declares its bytes "optional" and writes
# all of them. One comment with two replies there is enough: every later row of pyarrow has the reply of the row before,
# and the last reply is lost, without an error. DuckDB 2.0.1 sees that the columns have different lengths.
# Expected: "repeated" bytes, as the field is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1 duckdb==2.0.1
cd "$folder"
cat > pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId>
  <artifactId>finding</artifactId>
  <version>0</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.parquet</groupId>
      <artifactId>parquet-protobuf</artifactId>
      <version>1.17.0</version>
    </dependency>
    <dependency>
      <groupId>com.google.protobuf</groupId>
      <artifactId>protobuf-java</artifactId>
      <version>3.25.5</version>
    </dependency>
    <dependency>
      <groupId>org.apache.hadoop</groupId>
      <artifactId>hadoop-client-api</artifactId>
      <version>3.4.2</version>
    </dependency>
    <dependency>
      <groupId>org.apache.hadoop</groupId>
      <artifactId>hadoop-client-runtime</artifactId>
      <version>3.4.2</version>
    </dependency>
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$folder/repository" dependency:copy-dependencies -DoutputDirectory=lib \
    >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
cat > Write.java <<'JAVA'
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Message;
import com.google.protobuf.TextFormat;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.proto.ProtoParquetWriter;

public class Write {
  // message Post { int64 n = 1; Comment comment = 2; }
  // message Comment { string text = 1; repeated Comment replies = 2; }
  static final String SCHEMA = """
      name: "posts.proto" syntax: "proto3"
      message_type { name: "Post"
        field { name: "n" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
        field { name: "comment" number: 2 type: TYPE_MESSAGE type_name: ".Comment" label: LABEL_OPTIONAL } }
      message_type { name: "Comment"
        field { name: "text" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
        field { name: "replies" number: 2 type: TYPE_MESSAGE type_name: ".Comment" label: LABEL_REPEATED } }
      """;

  static Message comment(Descriptor type, String row, int level) {
    var message = DynamicMessage.newBuilder(type).setField(type.findFieldByName("text"), row + level);
    int replies = level == 7 ? 0 : level == 6 && row.equals("a") ? 2 : 1;
    for (int reply = 0; reply < replies; reply++) {
      message.addRepeatedField(type.findFieldByName("replies"), comment(type, row, level + 1));
    }
    return message.build();
  }

  public static void main(String[] arguments) throws Exception {
    var schema = TextFormat.parse(SCHEMA, FileDescriptorProto.class);
    var file = FileDescriptor.buildFrom(schema, new FileDescriptor[0]);
    var post = file.findMessageTypeByName("Post");
    var type = file.findMessageTypeByName("Comment");
    try (var writer =
        ProtoParquetWriter.<Message>builder(new Path("posts.parquet")).withDescriptor(post).build()) {
      for (String row : new String[] {"a", "b", "c", "d"}) {
        writer.write(DynamicMessage.newBuilder(post)
            .setField(post.findFieldByName("n"), (long) row.charAt(0))
            .setField(post.findFieldByName("comment"), comment(type, row, 1))
            .build());
      }
    }
  }
}
JAVA
java -cp 'lib/*' Write.java 2>/dev/null
venv/bin/python - <<'PYTHON'
import duckdb
import pyarrow.parquet as pq

file = pq.ParquetFile("posts.parquet")
leaves = [file.metadata.row_group(0).column(i) for i in range(file.metadata.num_columns)]
print({leaf.path_in_schema.count("replies"): leaf.num_values for leaf in leaves[1:]}, "values by level")
assert file.schema.column(len(leaves) - 1).max_repetition_level == 5
shown = []
for comment in file.read()["comment"].to_pylist():
    row = comment["text"]
    while isinstance(comment["replies"], list):
        comment = comment["replies"][0]
    shown.append((row, comment["text"], comment["replies"]))
for row in shown:
    print("pyarrow:", *row)
deepest = [bytes([10, 2]) + text for text in (b"a7", b"a7", b"b7", b"c7")]
assert shown == [(f"{r}1", f"{r}6", reply) for r, reply in zip("abcd", deepest, strict=True)], "no reply has moved"
try:
    found = duckdb.sql("SELECT comment FROM 'posts.parquet'").fetchall()
except duckdb.Error as error:
    print("DuckDB:", error)
    assert "mismatch" in str(error)
else:
    raise SystemExit(f"DuckDB reads it now: {found}")
PYTHON
