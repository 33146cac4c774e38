import com.jerolba.carpet.CarpetWriter;
import com.jerolba.carpet.io.FileSystemOutputFile;
import java.io.File;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.function.Function;

/** Writes the rows with Carpet: `java Carpet OUT`. */
public class Carpet {
    static final int ROWS = 1_000_000;

    public record Row(long id, String key, String text, String category, double x, double zero, Long n, LocalDateTime at) {}

    static Row row(int i) {
        StringBuilder text = new StringBuilder(String.format("%08d", i));
        for (int j = 0; j < 8; j++) {
            text.append(String.format("%08x", i * ((int) 2654435761L + 2 * j)));
        }
        long micros = 1_767_225_600_000_000L + i * 1_000_001L;
        LocalDateTime at = LocalDateTime.ofEpochSecond(micros / 1_000_000, (int) (micros % 1_000_000) * 1000, ZoneOffset.UTC);
        return new Row(i, String.format("k%08d", i * 7919L % ROWS), text.toString(), "c" + i % 50,
            i % 1000 == 7 ? Double.NaN : i / 4.0, i % 2 == 1 ? -0.0 : 0.0, i % 3 == 0 ? null : (long) (i % 1000), at);
    }

    static void write(File path, Function<CarpetWriter.Builder<Row>, CarpetWriter.Builder<Row>> change) throws Exception {
        try (var writer = change.apply(new CarpetWriter.Builder<>(new FileSystemOutputFile(path), Row.class)).build()) {
            for (int i = 0; i < ROWS; i++) {
                writer.write(row(i));
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        write(new File(arguments[0], "default.parquet"), builder -> builder);
        write(new File(arguments[0], "tuned.parquet"), builder -> builder.withPageRowCountLimit(8192).withPageSize(262144));
        System.out.println("writer carpet");
    }
}
